import { createHash, randomBytes } from 'node:crypto';
import process from 'node:process';
import { setImmediate } from 'node:timers/promises';
import v8 from 'node:v8';
import vm from 'node:vm';
import { expect, it } from 'vitest';
import { makeStep, newState, sha256, stateRef } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { putState, readWhole, refusalOf } from './scene.ts';
import { countRows } from './sql.ts';

const KIB = 1024;
const MIB = 1024 * KIB;
const CHUNK = 256 * KIB;

v8.setFlagsFromString('--expose-gc');
const collectGarbage = vm.runInNewContext('gc') as () => void;

/** The memory is measured after each 16 MiB, more than it may hold. Collections take most of the time of the test. */
const MEASURED_CHUNKS = 64;

/**
 * Bytes that this process holds, without garbage: buffers are released one turn after the collection that found them.
 */
async function heldBytes(): Promise<number> {
  collectGarbage();
  await setImmediate();
  collectGarbage();
  const { external, heapUsed } = process.memoryUsage();
  return external + heapUsed;
}

describeStore('uploading and reading states', (on) => {
  it.each([
    ['0 bytes', new Uint8Array(), CHUNK],
    ['1 byte', new Uint8Array([0]), CHUNK],
    ['a chunk', randomBytes(CHUNK), CHUNK],
    ['a chunk and a byte', randomBytes(CHUNK + 1), CHUNK],
    ['a chunk less a byte', randomBytes(CHUNK - 1), CHUNK],
    ['what compresses well', Buffer.alloc(3 * CHUNK + 17, 'abc'), CHUNK],
    ['chunks of odd sizes', randomBytes(700_001), 99_991],
    ['chunks of a byte', randomBytes(20), 1],
  ])('S4: %s is returned byte for byte', async (_, bytes, chunk) => {
    const { namespace } = on.scene();
    const digest = await putState(on.store, namespace, bytes, chunk);
    expect((await readWhole(on.store, namespace, digest)).equals(bytes)).toBe(true);
    expect(await on.store.findStates(namespace, [digest], false)).toEqual([{ digest, size: bytes.length }]);
  });

  it('S4: empty chunks are ignored', async () => {
    const { namespace } = on.scene();
    const upload = on.store.putState(namespace);
    for (const chunk of ['', 'ab', '', 'c', '']) await upload.write(Buffer.from(chunk));
    await upload.finish();
    expect(await readWhole(on.store, namespace, sha256('abc'))).toEqual(Buffer.from('abc'));
  });

  it('S4: 8 MiB are read from any offset, across chunks, never more than about 256 KiB at a time', async () => {
    const { namespace } = on.scene();
    const bytes = randomBytes(8 * MIB);
    const digest = await putState(on.store, namespace, bytes);
    expect((await readWhole(on.store, namespace, digest)).equals(bytes)).toBe(true);
    const offsets = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 4 * MIB, 8 * MIB - CHUNK, 8 * MIB - 1];
    for (const offset of offsets) {
      const piece = await on.store.readState(namespace, digest, offset);
      expect(piece.length).toBeGreaterThan(0);
      expect(piece.length).toBeLessThanOrEqual(CHUNK + KIB);
      expect(bytes.subarray(offset, offset + piece.length).equals(piece)).toBe(true);
    }
    expect(await on.store.readState(namespace, digest, 8 * MIB)).toHaveLength(0);
  });

  it('S4: a state that was sent inline is read in the same way', async () => {
    const scene = on.scene();
    const state = newState(randomBytes(512 * KIB));
    const made = await scene.create();
    await scene.append(made, [makeStep(0n, { states: [stateRef(state)] })], { states: [state] });
    for (const offset of [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 512 * KIB - 1, 512 * KIB]) {
      const rest = await readWhole(on.store, scene.namespace, state.digest, offset);
      expect(rest.equals(state.data.subarray(offset))).toBe(true);
      const piece = await on.store.readState(scene.namespace, state.digest, offset);
      expect(piece.length).toBeLessThanOrEqual(CHUNK + KIB);
    }
  });

  it('an unknown state is reported as such', async () => {
    const { namespace } = on.scene();
    const digest = sha256('nowhere');
    expect(await refusalOf(on.store.readState(namespace, digest, 0))).toMatchObject({
      reason: 'STATE_NOT_FOUND',
      metadata: { digest },
    });
    expect(await on.store.findStates(namespace, [digest], true)).toEqual([]);
    expect(await on.store.findStates(namespace, [], true)).toEqual([]);
  });

  it('S6: existing states are listed in the order of the request', async () => {
    const { namespace } = on.scene();
    const digests: string[] = [];
    for (const text of ['a', 'bb', 'ccc']) digests.push(await putState(on.store, namespace, Buffer.from(text)));
    const [a, b, c] = digests as [string, string, string];
    expect(await on.store.findStates(namespace, [c, sha256('x'), a, b], false)).toEqual([
      { digest: c, size: 3 },
      { digest: a, size: 1 },
      { digest: b, size: 2 },
    ]);
    const many = Array.from({ length: 1000 }, (_, i) => sha256(`${i}`));
    expect(await on.store.findStates(namespace, [...many.slice(1), a], true)).toEqual([{ digest: a, size: 1 }]);
  });

  it('S4: nothing is found before finish, nor after abort', async () => {
    const { namespace } = on.scene();
    const bytes = randomBytes(3 * CHUNK);
    const digest = sha256(bytes);
    const upload = on.store.putState(namespace);
    for (let at = 0; at < bytes.length; at += CHUNK) await upload.write(bytes.subarray(at, at + CHUNK));
    expect(await on.store.findStates(namespace, [digest], false)).toEqual([]);
    expect((await refusalOf(on.store.readState(namespace, digest, 0))).reason).toBe('STATE_NOT_FOUND');
    await upload.abort();
    await upload.abort();
    expect(await on.store.findStates(namespace, [digest], false)).toEqual([]);
    const left = await countRows(on.sql, namespace);
    expect(Object.values(left).every((n) => n === 0)).toBe(true);
  });

  it('S4: abort is harmless after finish, and before any byte', async () => {
    const { namespace } = on.scene();
    const bytes = randomBytes(2 * CHUNK);
    const upload = on.store.putState(namespace);
    await upload.write(bytes.subarray(0, CHUNK));
    await upload.write(bytes.subarray(CHUNK));
    await upload.finish();
    await upload.abort();
    expect((await readWhole(on.store, namespace, sha256(bytes))).equals(bytes)).toBe(true);
    await on.store.putState(namespace).abort();
  });

  it('S1: the same bytes uploaded many times are stored once in a namespace', async () => {
    const { namespace } = on.scene();
    const bytes = randomBytes(2 * CHUNK);
    await putState(on.store, namespace, bytes);
    const once = await countRows(on.sql, namespace);
    await putState(on.store, namespace, bytes);
    await putState(on.store, namespace, bytes, 1000 * 100);
    expect(await countRows(on.sql, namespace)).toEqual(once);
    const scene = on.scene();
    const state = newState(bytes);
    const made = await scene.create();
    await scene.append(made, [makeStep(0n, { states: [stateRef(state)] })], { states: [state] });
    await putState(on.store, scene.namespace, bytes);
    const rows = await countRows(on.sql, scene.namespace);
    expect(rows).toMatchObject({ states: 1, state_chunks: 0, state_uploads: 0 });
    expect((await readWhole(on.store, scene.namespace, state.digest)).equals(bytes)).toBe(true);
  });

  it('S1: concurrent uploads of the same bytes all finish, and one copy is kept', async () => {
    const { namespace } = on.scene();
    const bytes = randomBytes(2 * CHUNK + 5);
    await Promise.all(Array.from({ length: 6 }, () => putState(on.store, namespace, bytes)));
    expect(await countRows(on.sql, namespace)).toMatchObject({ states: 1, state_chunks: 3 });
    expect((await readWhole(on.store, namespace, sha256(bytes))).equals(bytes)).toBe(true);
  });

  it('S1: the same bytes uploaded and sent inline concurrently are stored once, and can be read', async () => {
    const scene = on.scene();
    for (let round = 0; round < 10; round += 1) {
      const state = newState(randomBytes(CHUNK + 10));
      const [one, two] = await Promise.all([scene.create(), scene.create()]);
      const step = makeStep(0n, { states: [stateRef(state)] });
      await Promise.all([
        putState(on.store, scene.namespace, state.data),
        scene.append(one, [step], { states: [state] }),
        scene.append(two, [step], { states: [state] }),
        on.store.findStates(scene.namespace, [state.digest], true),
      ]);
      expect((await readWhole(on.store, scene.namespace, state.digest)).equals(state.data)).toBe(true);
    }
    expect(await on.sql.rows(`select 1 as n from states where namespace = '${scene.namespace}'`)).toHaveLength(10);
  });

  it('S1: namespaces never share: a state of one is not found, read or deleted by the other', async () => {
    const [one, other] = [on.scene().namespace, on.scene().namespace];
    const bytes = randomBytes(2 * CHUNK);
    const digest = await putState(on.store, one, bytes);
    expect(await on.store.findStates(other, [digest], true)).toEqual([]);
    expect((await refusalOf(on.store.readState(other, digest, 0))).reason).toBe('STATE_NOT_FOUND');
    await putState(on.store, other, bytes);
    expect(await countRows(on.sql, other)).toEqual(await countRows(on.sql, one));
  });

  it('design 5: memory is bounded by the chunk size, not by the state', async () => {
    const { namespace } = on.scene();
    const before = await heldBytes();
    let most = 0;
    const chunk = randomBytes(CHUNK);
    const upload = on.store.putState(namespace);
    const hash = createHash('sha256');
    for (let i = 1; i <= 80; i += 1) {
      chunk.writeUInt32BE(i, 0);
      const copy = Buffer.from(chunk);
      hash.update(copy);
      await upload.write(copy);
      if (i % MEASURED_CHUNKS === 0) most = Math.max(most, (await heldBytes()) - before);
    }
    const digest = hash.digest('hex');
    expect(await upload.finish()).toEqual({ digest, size: 20 * MIB });
    let read = 0;
    for (let piece: Uint8Array, i = 1; ; read += piece.length, i += 1) {
      piece = await on.store.readState(namespace, digest, read);
      if (piece.length === 0) break;
      if (i % MEASURED_CHUNKS === 0) most = Math.max(most, (await heldBytes()) - before);
    }
    expect(read).toBe(20 * MIB);
    expect(most).toBeLessThan(12 * MIB);
  });
});
