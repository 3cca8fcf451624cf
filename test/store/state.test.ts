import { createHash, randomBytes } from 'node:crypto';
import process from 'node:process';
import { setImmediate } from 'node:timers/promises';
import v8 from 'node:v8';
import vm from 'node:vm';
import { expect, it } from 'vitest';
import type { Store } from '../../src/store/contract/store.ts';
import { newState, newStep, sha256, stateRef, textObservation, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { readWhole, refusalOf } from './scene.ts';
import { countRows } from './sql.ts';

const KIB = 1024;
const MIB = 1024 * KIB;
const CHUNK = 256 * KIB;

v8.setFlagsFromString('--expose-gc');
const collectGarbage = vm.runInNewContext('gc') as () => void;

/** Bytes that this process holds on to, garbage apart: buffers are let go of a turn after the collection that found them. */
async function heldBytes(): Promise<number> {
  collectGarbage();
  await setImmediate();
  collectGarbage();
  const { external, heapUsed } = process.memoryUsage();
  return external + heapUsed;
}

async function put(store: Store, namespace: string, bytes: Uint8Array, chunk = CHUNK): Promise<string> {
  const upload = store.putState(namespace);
  for (let at = 0; at < bytes.length; at += chunk) await upload.write(bytes.subarray(at, at + chunk));
  const digest = sha256(bytes);
  expect(await upload.finish(digest)).toEqual({ digest, size: bytes.length });
  return digest;
}

describeStore('putting and reading states', (on) => {
  it.each([
    ['0 bytes', new Uint8Array(), CHUNK],
    ['1 byte', new Uint8Array([0]), CHUNK],
    ['a chunk', randomBytes(CHUNK), CHUNK],
    ['a chunk and a byte', randomBytes(CHUNK + 1), CHUNK],
    ['a chunk less a byte', randomBytes(CHUNK - 1), CHUNK],
    ['what compresses well', Buffer.alloc(3 * CHUNK + 17, 'abc'), CHUNK],
    ['chunks of odd sizes', randomBytes(700_001), 99_991],
    ['chunks of a byte', randomBytes(20), 1],
  ])('S4: %s comes back byte for byte', async (_, bytes, chunk) => {
    const { namespace } = on.scene();
    const digest = await put(on.store, namespace, bytes, chunk);
    expect((await readWhole(on.store, namespace, digest)).equals(bytes)).toBe(true);
    expect(await on.store.findStates(namespace, [digest], false)).toEqual([{ digest, size: bytes.length }]);
  });

  it('S4: empty chunks are nothing', async () => {
    const { namespace } = on.scene();
    const upload = on.store.putState(namespace);
    for (const chunk of ['', 'ab', '', 'c', '']) await upload.write(Buffer.from(chunk));
    await upload.finish(sha256('abc'));
    expect(await readWhole(on.store, namespace, sha256('abc'))).toEqual(Buffer.from('abc'));
  });

  it('S4: 8 MiB are read from any offset, over the borders of chunks, never more than about 256 KiB at once', async () => {
    const { namespace } = on.scene();
    const bytes = randomBytes(8 * MIB);
    const digest = await put(on.store, namespace, bytes);
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

  it('S4: a state that came inline is read in the same way', async () => {
    const scene = on.scene();
    const state = newState(randomBytes(512 * KIB));
    const made = await scene.create();
    await scene.append(made, [newStep(0n, { states: [stateRef(state)] })], { states: [state] });
    for (const offset of [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 512 * KIB - 1, 512 * KIB]) {
      const rest = await readWhole(on.store, scene.namespace, state.digest, offset);
      expect(rest.equals(state.data.subarray(offset))).toBe(true);
      const piece = await on.store.readState(scene.namespace, state.digest, offset);
      expect(piece.length).toBeLessThanOrEqual(CHUNK + KIB);
    }
  });

  it('a state that is not here is told so', async () => {
    const { namespace } = on.scene();
    const digest = sha256('nowhere');
    expect(await refusalOf(on.store.readState(namespace, digest, 0))).toMatchObject({
      reason: 'STATE_NOT_FOUND',
      metadata: { digest },
    });
    expect(await on.store.findStates(namespace, [digest], true)).toEqual([]);
    expect(await on.store.findStates(namespace, [], true)).toEqual([]);
  });

  it('S6: those that are here are told in the order given', async () => {
    const { namespace } = on.scene();
    const digests: string[] = [];
    for (const text of ['a', 'bb', 'ccc']) digests.push(await put(on.store, namespace, Buffer.from(text)));
    const [a, b, c] = digests as [string, string, string];
    expect(await on.store.findStates(namespace, [c, sha256('x'), a, b], false)).toEqual([
      { digest: c, size: 3 },
      { digest: a, size: 1 },
      { digest: b, size: 2 },
    ]);
    const many = Array.from({ length: 1000 }, (_, i) => sha256(`${i}`));
    expect(await on.store.findStates(namespace, [...many.slice(1), a], true)).toEqual([{ digest: a, size: 1 }]);
  });

  it('S4: nothing is to be found before finish, nor after abort', async () => {
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
    await upload.finish(sha256(bytes));
    await upload.abort();
    expect((await readWhole(on.store, namespace, sha256(bytes))).equals(bytes)).toBe(true);
    await on.store.putState(namespace).abort();
  });

  it('S1: the same bytes put many times are stored once in a namespace', async () => {
    const { namespace } = on.scene();
    const bytes = randomBytes(2 * CHUNK);
    await put(on.store, namespace, bytes);
    const once = await countRows(on.sql, namespace);
    await put(on.store, namespace, bytes);
    await put(on.store, namespace, bytes, 1000 * 100);
    expect(await countRows(on.sql, namespace)).toEqual(once);
    const scene = on.scene();
    const state = newState(bytes);
    const made = await scene.create();
    await scene.append(made, [newStep(0n, { states: [stateRef(state)] })], { states: [state] });
    await put(on.store, scene.namespace, bytes);
    const rows = await countRows(on.sql, scene.namespace);
    expect(rows).toMatchObject({ states: 1, state_chunks: 0, state_uploads: 0 });
    expect((await readWhole(on.store, scene.namespace, state.digest)).equals(bytes)).toBe(true);
  });

  it('S1: of many uploads of the same bytes at once, all finish and one is kept', async () => {
    const { namespace } = on.scene();
    const bytes = randomBytes(2 * CHUNK + 5);
    await Promise.all(Array.from({ length: 6 }, () => put(on.store, namespace, bytes)));
    expect(await countRows(on.sql, namespace)).toMatchObject({ states: 1, state_chunks: 3 });
    expect((await readWhole(on.store, namespace, sha256(bytes))).equals(bytes)).toBe(true);
  });

  it('S1: the same bytes put and sent inline at once are stored once, and can be read', async () => {
    const scene = on.scene();
    for (let round = 0; round < 10; round += 1) {
      const state = newState(randomBytes(CHUNK + 10));
      const [one, two] = await Promise.all([scene.create(), scene.create()]);
      const step = newStep(0n, { states: [stateRef(state)] });
      await Promise.all([
        put(on.store, scene.namespace, state.data),
        scene.append(one, [step], { states: [state] }),
        scene.append(two, [step], { states: [state] }),
        on.store.findStates(scene.namespace, [state.digest], true),
      ]);
      expect((await readWhole(on.store, scene.namespace, state.digest)).equals(state.data)).toBe(true);
    }
    expect(await on.sql.rows(`select 1 as n from states where namespace = '${scene.namespace}'`)).toHaveLength(10);
  });

  it('S1: two tenants never share: what one put the other neither finds nor reads, and deletes nothing of it', async () => {
    const [one, other] = [on.scene().namespace, on.scene().namespace];
    const bytes = randomBytes(2 * CHUNK);
    const digest = await put(on.store, one, bytes);
    expect(await on.store.findStates(other, [digest], true)).toEqual([]);
    expect((await refusalOf(on.store.readState(other, digest, 0))).reason).toBe('STATE_NOT_FOUND');
    await put(on.store, other, bytes);
    expect(await countRows(on.sql, other)).toEqual(await countRows(on.sql, one));
  });

  it('design 5: memory is bounded by chunks, not by the state', async () => {
    const { namespace } = on.scene();
    const before = await heldBytes();
    let most = 0;
    const chunk = randomBytes(CHUNK);
    const upload = on.store.putState(namespace);
    const hash = createHash('sha256');
    for (let i = 0; i < 192; i += 1) {
      chunk.writeUInt32BE(i, 0);
      const copy = Buffer.from(chunk);
      hash.update(copy);
      await upload.write(copy);
      if (i % 16 === 15) most = Math.max(most, (await heldBytes()) - before);
    }
    const digest = hash.digest('hex');
    expect(await upload.finish(digest)).toEqual({ digest, size: 48 * MIB });
    let read = 0;
    for (let piece: Uint8Array, i = 0; ; read += piece.length, i += 1) {
      piece = await on.store.readState(namespace, digest, read);
      if (piece.length === 0) break;
      if (i % 16 === 15) most = Math.max(most, (await heldBytes()) - before);
    }
    expect(read).toBe(48 * MIB);
    expect(most).toBeLessThan(12 * MIB);
  });
});

describeStore('damaged states', (on) => {
  /** Overwrites bytes of the table: the first eight of each row's data that the condition picks. */
  async function damage(table: 'states' | 'state_chunks', where: string): Promise<void> {
    const rows =
      on.engine === 'sqlite'
        ? await on.sql.rows(
            `update ${table} set data = x'deadbeefdeadbeef' || substr(data, 9) where ${where} returning 1 as n`,
          )
        : await on.sql.rows(
            `update ${table} set data = '\\xdeadbeefdeadbeef'::bytea || substr(data, 9) where ${where} returning 1 as n`,
          );
    if (on.engine === 'sqlite')
      await on.sql.rows(`update ${table} set data = cast(data as blob) where ${where} returning 1 as n`);
    expect(rows.length).toBeGreaterThan(0);
  }

  const corrupt = (digest: string) => ({ reason: 'STATE_CORRUPT', metadata: { digest } });

  it.each([
    ['as they are', randomBytes(3000)],
    ['compressed', Buffer.alloc(100_000, 'compresses well ')],
  ])('S3, D5: changed bytes of a whole state, kept %s, are told as corrupt, not returned', async (_, bytes) => {
    const scene = on.scene();
    const state = newState(bytes);
    const made = await scene.create();
    await scene.append(made, [newStep(0n, { states: [stateRef(state)] })], { states: [state] });
    await damage('states', `namespace = '${scene.namespace}'`);
    expect(await refusalOf(on.store.readState(scene.namespace, state.digest, 0))).toMatchObject(corrupt(state.digest));
    expect((await refusalOf(on.store.readState(scene.namespace, state.digest, 100))).reason).toBe('STATE_CORRUPT');
    expect((await scene.steps(made))[0]?.step.states).toEqual([stateRef(state)]);
  });

  it.each([
    ['as they are', randomBytes(4 * CHUNK)],
    ['compressed', Buffer.alloc(4 * CHUNK, 'compresses well ')],
  ])('S3, D5: a changed chunk, kept %s, spoils the ranges that are cut from it, and says so', async (_, bytes) => {
    const { namespace } = on.scene();
    const digest = await put(on.store, namespace, bytes);
    await damage(
      'state_chunks',
      `namespace = '${namespace}' and ordinal = (select max(ordinal) from state_chunks where namespace = '${namespace}') - 1`,
    );
    expect(await on.store.readState(namespace, digest, 0)).toHaveLength(CHUNK);
    expect(await refusalOf(on.store.readState(namespace, digest, 2 * CHUNK))).toMatchObject(corrupt(digest));
    expect(await refusalOf(on.store.readState(namespace, digest, 3 * CHUNK - 1))).toMatchObject(corrupt(digest));
    expect(await on.store.readState(namespace, digest, 3 * CHUNK)).toHaveLength(CHUNK);
  });

  it.each(['first', 'middle', 'last'])(
    'S3, D5: the %s chunk of three gone is corrupt, never a short state',
    async (which) => {
      const { namespace } = on.scene();
      const digest = await put(on.store, namespace, randomBytes(3 * CHUNK));
      const n = ['first', 'middle', 'last'].indexOf(which);
      const ordinals = await on.sql.rows(
        `select ordinal from state_chunks where namespace = '${namespace}' order by ordinal`,
      );
      await on.sql.rows(
        `delete from state_chunks where namespace = '${namespace}' and ordinal = ${ordinals[n]?.ordinal}`,
      );
      expect(await refusalOf(readWhole(on.store, namespace, digest))).toMatchObject(corrupt(digest));
      expect(await refusalOf(on.store.readState(namespace, digest, n * CHUNK + 5))).toMatchObject(corrupt(digest));
    },
  );

  it('S3, D5: chunks that changed places are corrupt', async () => {
    const { namespace } = on.scene();
    const bytes = randomBytes(3 * CHUNK);
    const digest = await put(on.store, namespace, bytes);
    const of = `namespace = '${namespace}'`;
    const [first] = await on.sql.rows(`select min(ordinal) as n from state_chunks where ${of}`);
    const n = Number(first?.n);
    for (const [from, to] of [
      [n, n + 900],
      [n + 1, n],
      [n + 900, n + 1],
    ])
      await on.sql.rows(`update state_chunks set ordinal = ${to} where ${of} and ordinal = ${from}`);
    const told = await readWhole(on.store, namespace, digest).then(
      (read) => (read.equals(bytes) ? 'the state' : 'other bytes'),
      (error: { reason?: string }) => error.reason,
    );
    expect(told).toBe('STATE_CORRUPT');
  });

  it('S3: the damage of one tenant is not the damage of another', async () => {
    const [one, other] = [on.scene().namespace, on.scene().namespace];
    const bytes = randomBytes(3000);
    const digest = await put(on.store, one, bytes);
    await put(on.store, other, bytes);
    const chunks = Number(
      (await on.sql.rows(`select count(*) as n from state_chunks where namespace = '${one}'`))[0]?.n,
    );
    await damage(chunks > 0 ? 'state_chunks' : 'states', `namespace = '${one}'`);
    expect((await refusalOf(on.store.readState(one, digest, 0))).reason).toBe('STATE_CORRUPT');
    expect((await readWhole(on.store, other, digest)).equals(bytes)).toBe(true);
  });
});

describeStore('collecting states', (on) => {
  /** Makes everything of the namespace so many hours older. */
  async function age(namespace: string, hours: number): Promise<void> {
    for (const [table, column] of [
      ['states', 'renew_time'],
      ['state_uploads', 'renew_time'],
    ]) {
      const older =
        on.engine === 'sqlite'
          ? `strftime('%Y-%m-%dT%H:%M:%fZ', substr(${column}, 1, 23) || 'Z', '-${hours} hours')`
          : `${column} - interval '${hours} hours'`;
      await on.sql.rows(`update ${table} set ${column} = ${older} where namespace = '${namespace}'`);
    }
  }

  async function collectAll(ttlHours = 24): Promise<number> {
    let all = 0;
    for (let n = -1; n !== 0; all += n) n = await on.store.collectStates(ttlHours, 1000);
    return all;
  }

  const here = async (namespace: string, digests: readonly string[]) =>
    (await on.store.findStates(namespace, digests, false)).map(({ digest }) => digest);

  it('S2: a state that no step refers to lives as long as it is told to, from its last renewal', async () => {
    const { namespace } = on.scene();
    const small = await put(on.store, namespace, Buffer.from('small'));
    const large = await put(on.store, namespace, randomBytes(3 * CHUNK));
    await age(namespace, 23);
    await collectAll(24);
    expect(await here(namespace, [small, large])).toEqual([small, large]);
    await age(namespace, 2);
    await collectAll(26);
    expect(await here(namespace, [small, large])).toEqual([small, large]);
    expect(await collectAll(24)).toBe(2);
    expect(await here(namespace, [small, large])).toEqual([]);
    expect(Object.values(await countRows(on.sql, namespace)).every((n) => n === 0)).toBe(true);
  });

  it('S2, S6: is renewed by being put again, and by being asked for where that is wanted', async () => {
    const { namespace } = on.scene();
    const texts = ['put again', 'renewed', 'only looked at', 'left alone'];
    const digests: string[] = [];
    for (const text of texts) digests.push(await put(on.store, namespace, Buffer.from(text)));
    await age(namespace, 30);
    await put(on.store, namespace, Buffer.from('put again'));
    await on.store.findStates(namespace, [digests[1] as string, sha256('unknown')], true);
    await on.store.findStates(namespace, [digests[2] as string], false);
    await collectAll();
    expect(await here(namespace, digests)).toEqual(digests.slice(0, 2));
  });

  it('S2: one that a step refers to is never taken: as a state, in a content, attached, or inherited only', async () => {
    const scene = on.scene();
    const [asState, inContent, attached] = ['state', 'content', 'attached'].map((text) => newState(text));
    if (!asState || !inContent || !attached) throw new Error('three states');
    const content = { kind: 'state', digest: inContent.digest, mediaType: '', size: 7 } as const;
    const root = await scene.create();
    const step = newStep(0n, { states: [stateRef(asState)], observations: [textObservation('', { content })] });
    await scene.append(root, [step, wordStep(1n, 'own')], { states: [asState, inContent] });
    await scene.store.attachState(scene.caller, {
      trajectoryId: root.id,
      uid: undefined,
      writerEpoch: undefined,
      stepNumber: 0n,
      name: 'agent',
      digest: attached.digest,
      mediaType: '',
      data: attached.data,
    });
    const child = await scene.branch(root, 0n);
    await scene.delete(root, 'KEEP_SHARED');
    await age(scene.namespace, 1000);
    await collectAll();
    const digests = [asState.digest, inContent.digest, attached.digest];
    expect(await here(scene.namespace, digests)).toEqual(digests);
    await scene.delete(child);
    await collectAll();
    expect(await here(scene.namespace, digests)).toEqual([]);
  });

  it('S2: goes with its last step: not with the first of two, also where one state has two references', async () => {
    const scene = on.scene();
    const state = newState('twice');
    const one = await scene.create();
    const two = await scene.create();
    const step = newStep(0n, { states: [stateRef(state, 'a'), stateRef(state, 'b')] });
    await scene.append(one, [step], { states: [state] });
    await scene.append(two, [step]);
    await scene.delete(one);
    await age(scene.namespace, 30);
    await collectAll();
    expect(await here(scene.namespace, [state.digest])).toEqual([state.digest]);
    await scene.delete(two);
    await collectAll();
    expect(await here(scene.namespace, [state.digest])).toEqual([]);
  });

  it('S2, B2: states of steps that were trimmed away go, those of shared steps stay', async () => {
    const scene = on.scene();
    const states = Array.from({ length: 4 }, (_, i) => newState(`s${i}`));
    const root = await scene.create();
    await scene.append(
      root,
      states.map((state, i) => newStep(BigInt(i), { states: [stateRef(state)] })),
      { states },
    );
    const low = await scene.branch(root, 0n);
    const high = await scene.branch(root, 2n);
    await scene.delete(root, 'KEEP_SHARED');
    await age(scene.namespace, 30);
    await collectAll();
    const digests = states.map(({ digest }) => digest);
    expect(await here(scene.namespace, digests)).toEqual(digests.slice(0, 3));
    await scene.delete(high);
    await collectAll();
    expect(await here(scene.namespace, digests)).toEqual(digests.slice(0, 1));
    await scene.delete(low);
    await collectAll();
    expect(await here(scene.namespace, digests)).toEqual([]);
  });

  it('S2: takes at most so many at a time, and tells how many', async () => {
    await collectAll(0);
    const { namespace } = on.scene();
    for (let i = 0; i < 7; i += 1) await put(on.store, namespace, Buffer.from(`${i}`));
    await age(namespace, 30);
    expect(await on.store.collectStates(24, 3)).toBe(3);
    expect(await on.store.collectStates(24, 3)).toBe(3);
    expect(await on.store.collectStates(24, 3)).toBe(1);
    expect(await on.store.collectStates(24, 3)).toBe(0);
  });

  it('S2: what a broken upload left goes too; one that is under way stays', async () => {
    const { namespace } = on.scene();
    const bytes = randomBytes(3 * CHUNK);
    const broken = on.store.putState(namespace);
    await broken.write(bytes.subarray(0, CHUNK));
    await broken.write(bytes.subarray(CHUNK, 2 * CHUNK));
    await age(namespace, 30);
    const underWay = on.store.putState(namespace);
    for (let at = 0; at < bytes.length; at += CHUNK) await underWay.write(bytes.subarray(at, at + CHUNK));
    await collectAll();
    await underWay.finish(sha256(bytes));
    expect((await readWhole(on.store, namespace, sha256(bytes))).equals(bytes)).toBe(true);
    expect(await countRows(on.sql, namespace)).toMatchObject({ states: 1, state_chunks: 3 });
  });

  it('S2, D5: an upload whose chunks were collected does not finish as a state without them', async () => {
    const { namespace } = on.scene();
    const bytes = randomBytes(3 * CHUNK);
    const slow = on.store.putState(namespace);
    await slow.write(bytes.subarray(0, CHUNK));
    await slow.write(bytes.subarray(CHUNK, 2 * CHUNK));
    await age(namespace, 30);
    await collectAll();
    const finished = await (async () => {
      await slow.write(bytes.subarray(2 * CHUNK));
      return slow.finish(sha256(bytes));
    })().then(
      () => true,
      () => false,
    );
    if (finished) expect((await readWhole(on.store, namespace, sha256(bytes))).equals(bytes)).toBe(true);
    else expect(await here(namespace, [sha256(bytes)])).toEqual([]);
  });

  it('S2: an append that refers to a state while it is collected either has it or is refused', async () => {
    const scene = on.scene();
    let kept = 0;
    for (let round = 0; round < 40; round += 1) {
      const state = newState(`round ${round}`);
      await put(on.store, scene.namespace, state.data);
      const made = await scene.create();
      const step = newStep(0n, { states: [stateRef(state)] });
      const collecting = on.store.collectStates(0, 1000);
      const appended = await scene.append(made, [step]).then(
        () => true,
        (error: { reason?: string }) => {
          expect(error.reason).toBe('STATE_NOT_FOUND');
          return false;
        },
      );
      await collecting;
      await on.store.collectStates(0, 1000);
      if (!appended) continue;
      kept += 1;
      expect(await readWhole(on.store, scene.namespace, state.digest)).toEqual(Buffer.from(state.data));
    }
    expect(kept).toBeGreaterThanOrEqual(0);
  });

  it('S2: bytes sent inline while the same state is deleted and collected are there afterwards', async () => {
    const scene = on.scene();
    const state = newState('comes and goes');
    let holder = await scene.create();
    const step = newStep(0n, { states: [stateRef(state)] });
    await scene.append(holder, [step], { states: [state] });
    for (let round = 0; round < 30; round += 1) {
      const next = await scene.create();
      await Promise.all([
        scene.delete(holder).then(() => on.store.collectStates(0, 1000)),
        on.store.collectStates(0, 1000),
        scene.append(next, [step], { states: [state] }),
      ]);
      expect(await readWhole(on.store, scene.namespace, state.digest)).toEqual(Buffer.from(state.data));
      holder = next;
    }
  });
});
