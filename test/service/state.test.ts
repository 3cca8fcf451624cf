import { randomBytes } from 'node:crypto';
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import {
  GetStateRequestSchema,
  type GetStateResponse,
  ReadStatesRequestSchema,
  type StateRange,
} from '../../gen/es/anabranch/v1/state_service_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { readStates } from '../../src/service/state/read.ts';
import { getState, putState } from '../../src/service/state/state.ts';
import { appWithin } from '../../src/stream/app.ts';
import { maintain } from '../../src/stream/maintenance.ts';
import { refusalOf } from '../store/scene.ts';
import { outsideSql } from '../store/sql.ts';
import { statementsOfWarm } from '../store/statement_count.ts';
import { callOf } from '../support/parts_call.ts';
import { sha256 } from '../support/steps.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { type AppScene, all, describeApp, state, step } from './on_app.ts';

const MiB = 1024 * 1024;

describeApp('states', (on) => {
  async function countChunks({ caller }: AppScene): Promise<number> {
    const sql = await outsideSql(on.database);
    const [left] = await sql.rows(`select count(*) as n from state_chunks where namespace = '${caller.namespace}'`);
    await sql.close();
    return Number(left?.n);
  }

  /** Deletes a state as if nothing named it. */
  async function forget(digest: string): Promise<void> {
    const sql = await outsideSql(on.database);
    const named = on.engine === 'sqlite' ? `x'${digest}'` : `'\\x${digest}'`;
    await sql.rows(`delete from states where digest = ${named} returning 1 as n`);
    await sql.close();
  }

  it('S1, S4: a state uploaded in chunks of any size is named by the hash of the whole, and read back byte for byte', async () => {
    const scene = on.scene();
    for (const [size, piece] of [
      [0, 1],
      [1, 1],
      [3000, 7],
      [LIMITS.chunkBytes, 1000],
      [2 * MiB + 1, 100_001],
    ] as const) {
      const bytes = randomBytes(size);
      const info = await put(scene, bytes, piece);
      expect(info).toEqual({ digest: sha256(bytes), size });
      expectBytes(await get(scene, info.digest), bytes);
    }
  });

  it('A2: an upload that waits for its client ends at once on a drain', async () => {
    const app = on.app();
    let pulled = () => {};
    const waiting = new Promise<void>((resolve) => {
      pulled = resolve;
    });
    async function* chunks() {
      yield randomBytes(10);
      pulled();
      await new Promise(() => {});
    }
    const upload = refusalOf(putState(app, on.scene(app).caller, { digest: undefined, chunks: chunks() }));
    await waiting;
    app.drain.begin();
    expect(await upload).toMatchObject({ reason: 'SERVER_DRAINING' });
    await app.close();
  });

  it('S4: the first frame may contain the digest, which then must match; otherwise nothing is stored', async () => {
    const scene = on.scene();
    const bytes = randomBytes(1000);
    expect(await put(scene, bytes, 100, sha256(bytes))).toMatchObject({ size: 1000 });
    const other = randomBytes(1000);
    expect(await refusalOf(put(scene, other, 100, sha256(bytes)))).toMatchObject({
      reason: 'DIGEST_MISMATCH',
      metadata: { expected_digest: sha256(bytes), digest: sha256(other) },
    });
    expect((await refusalOf(get(scene, sha256(other)))).reason).toBe('STATE_NOT_FOUND');
    expect((await refusalOf(put(scene, other, 100, 'no digest'))).violations[0]?.field).toBe('digest');
  });

  it('A6: an upload whose call ends leaves no chunks', async () => {
    const scene = on.scene();
    const controller = new AbortController();
    const reason = new Error('the caller has left');
    const app = appWithin(scene.app, { signal: controller.signal });
    const chunks = async function* () {
      yield randomBytes(2 * LIMITS.chunkBytes);
      controller.abort(reason);
      yield randomBytes(LIMITS.chunkBytes);
    };
    await expect(putState(app, scene.caller, { digest: undefined, chunks: chunks() })).rejects.toBe(reason);
    expect(await countChunks(scene)).toBe(0);
  });

  it('S4: a state whose client disconnects during the upload is not found', async () => {
    const scene = on.scene();
    const bytes = randomBytes(600 * 1024);
    const broken = putState(scene.app, scene.caller, {
      digest: undefined,
      chunks: (async function* () {
        yield bytes;
        throw new Error('the client is gone');
      })(),
    });
    await expect(broken).rejects.toThrow('the client is gone');
    expect(await scene.statesHere([sha256(bytes)])).toEqual([]);
  });

  it('S4, S9: the first frame may name a base, whose equal pieces are not stored again', async () => {
    const scene = on.scene();
    const bytes = randomBytes(2 * MiB);
    const base = await put(scene, bytes, MiB / 2);
    const longer = Buffer.concat([bytes, Buffer.from('longer')]);
    const putAfter = (baseDigest: string) => {
      const chunks = (async function* () {
        yield longer;
      })();
      return putState(scene.app, scene.caller, { digest: '', baseDigest, chunks });
    };
    const info = await putAfter(base.digest);
    expectBytes(await get(scene, info.digest), longer);
    const sql = await outsideSql(on.database);
    const [row] = await sql.rows(
      `select count(piece_upload) as n from state_chunks where namespace = '${scene.caller.namespace}'`,
    );
    await sql.close();
    expect(Number(row?.n)).toBe(8);
    expect(await refusalOf(putAfter('X'))).toMatchObject({ violations: [{ field: 'base_digest' }] });
  });

  it('S4: a state over 256 MiB is refused during the upload', async () => {
    let written = 0;
    // Bytes are counted before they reach the store. This one stores the first piece of each chunk.
    const store = wrappedStore(on.store, {
      putState: (namespace, base) => {
        const upload = on.store.putState(namespace, base);
        const write = (chunk: Uint8Array) => {
          written += chunk.length;
          return upload.write(chunk.subarray(0, LIMITS.chunkBytes));
        };
        return { write, digest: () => upload.digest(), finish: () => upload.finish(), abort: () => upload.abort() };
      },
    });
    const app = on.app({}, store);
    const scene = on.scene(app);
    const chunk = new Uint8Array(LIMITS.stateBytes / 16);
    const endless = putState(app, scene.caller, {
      digest: undefined,
      chunks: (async function* () {
        for (;;) yield chunk;
      })(),
    });
    expect((await refusalOf(endless)).violations[0]?.field).toBe('chunk');
    expect(written).toBe(LIMITS.stateBytes);
    expect(await countChunks(scene)).toBe(0);
    await app.close();
  });

  it('S3, S4: byte ranges, also across chunks; a start beyond the end is refused, an end beyond it is clipped', async () => {
    const scene = on.scene();
    const bytes = randomBytes(700 * 1024);
    const { digest } = await put(scene, bytes, 64 * 1024);
    for (const [offset, length] of [
      [0, 1],
      [262_143, 2],
      [262_144, 262_144],
      [100, 600_000],
      [716_799, 10],
      [0, 0],
    ] as const) {
      expectBytes(await get(scene, digest, offset, length), bytes.subarray(offset, offset + length));
    }
    expectBytes(await get(scene, digest, 500_000), bytes.subarray(500_000));
    expect(await get(scene, digest, bytes.length)).toEqual(Buffer.alloc(0));
    expect(await refusalOf(get(scene, digest, bytes.length + 1))).toMatchObject({
      reason: 'RANGE_BEYOND_END',
      metadata: { size: `${bytes.length}` },
    });
  });

  it('S4: the first chunk has the size, also for an empty state, and no chunk is over 256 KiB', async () => {
    const scene = on.scene();
    const { digest } = await put(scene, Buffer.alloc(0), 1);
    const empty = await all(chunksOf(scene, { digest }));
    expect(empty).toMatchObject([{ state: { digest, size: 0n }, chunk: new Uint8Array(0) }]);
    const large = await put(scene, randomBytes(MiB), 300_000);
    const chunks = await all(chunksOf(scene, { digest: large.digest }));
    expect(chunks.map(({ state: info }) => info?.size)).toEqual([
      BigInt(large.size),
      ...chunks.slice(1).map(() => undefined),
    ]);
    for (const { chunk } of chunks) expect(chunk.length).toBeLessThanOrEqual(LIMITS.chunkBytes);
  });

  it('S4: a state of a step is read by reference: own or inherited, of any size, whole or a range', async () => {
    const scene = on.scene();
    const root = await scene.create();
    const large = randomBytes(MiB);
    const { digest } = await put(scene, large, 300_000);
    await scene.write(root, [
      step(0n, 'r', { states: [state('r0'), state('', { name: 'none' })] }),
      step(1n, 'r', { states: [state(undefined, { digest, name: 'large', mediaType: 'x/large' })] }),
    ]);
    const branch = await scene.branch(root, 1n);
    await scene.write(branch, [step(2n, 'b', { states: [state('b2', { mediaType: 'text/plain' })] })]);
    await scene.rpc.attachState({
      trajectoryId: branch.id,
      writerEpoch: 1n,
      stepNumber: 2n,
      state: { name: 'late', data: Buffer.from('attached') },
    });
    const read = async (trajectoryId: string, stepNumber: bigint, name = '', range = {}) => {
      const chunks = await all(chunksOf(scene, { reference: { trajectoryId, stepNumber, name }, ...range }));
      return { first: chunks[0], bytes: Buffer.concat(chunks.map(({ chunk }) => chunk)) };
    };
    for (const { id } of [root, branch]) {
      expect((await read(id, 0n)).bytes.toString()).toBe('r0');
      expect((await read(id, 0n, 'none')).first).toMatchObject({ state: { size: 0n }, chunk: new Uint8Array(0) });
      const { first, bytes } = await read(id, 1n, 'large');
      expect(first).toMatchObject({ state: { digest, size: BigInt(MiB) }, mediaType: 'x/large' });
      expect(bytes.equals(large)).toBe(true);
      const range = await read(id, 1n, 'large', { offset: 262_143n, length: 2n });
      expect(range.bytes).toEqual(large.subarray(262_143, 262_145));
    }
    expect(await read(branch.id, 2n)).toMatchObject({ first: { mediaType: 'text/plain' }, bytes: Buffer.from('b2') });
    expect((await read(branch.id, 2n, 'late')).bytes.toString()).toBe('attached');

    expect(await refusalOf(read(root.id, 2n))).toMatchObject({ reason: 'STEP_NOT_FOUND' });
    expect(await refusalOf(read(root.id, 0n, 'large'))).toMatchObject({
      reason: 'STATE_NOT_FOUND',
      message: expect.stringContaining('its states are "env", "none"'),
      metadata: { trajectory_id: root.id, step_number: '0', name: 'large' },
    });
    expect((await refusalOf(read(branch.id, 1n, 'large', { offset: BigInt(MiB) + 1n }))).reason).toBe(
      'RANGE_BEYOND_END',
    );
    const elsewhere = on.scene(scene.app);
    const reference = { trajectoryId: root.id, stepNumber: 0n };
    expect((await refusalOf(all(chunksOf(elsewhere, { reference })))).reason).toBe('TRAJECTORY_NOT_FOUND');
  });

  it('S1: an inline state below 4 KiB is found by its reference only, and cannot be named by its digest', async () => {
    const scene = on.scene();
    const [small, large] = [randomBytes(LIMITS.smallStateBytes - 1), randomBytes(LIMITS.smallStateBytes)];
    const root = await scene.create();
    await scene.write(root, [step(0n, 's', { states: [state(small, { name: 'small' }), state(large)] })]);
    const branch = await scene.branch(root, 0n);
    for (const [name, bytes] of Object.entries({ small, env: large })) {
      const reference = { trajectoryId: branch.id, stepNumber: 0n, name };
      const [first] = await all(chunksOf(scene, { reference }));
      expect(first?.state).toMatchObject({ digest: sha256(bytes), size: BigInt(bytes.length) });
      expect(Buffer.from(first?.chunk ?? [])).toEqual(bytes);
    }
    expect(await scene.statesHere([sha256(small), sha256(large)])).toEqual([{ digest: sha256(large), size: 4096 }]);
    expect((await refusalOf(get(scene, sha256(small)))).reason).toBe('STATE_NOT_FOUND');
    const content = { kind: 'state', digest: sha256(small), mediaType: 'm', size: 0 } as const;
    for (const fields of [
      { states: [state(undefined, { digest: sha256(small) })] },
      { states: [state(small)], observations: [{ type: '', callId: '', isError: false, content }] },
    ]) {
      expect(await refusalOf(scene.write(root, [step(1n, 'named', fields)]))).toMatchObject({
        reason: 'STATE_NOT_FOUND',
        message: expect.stringContaining('send its bytes inline'),
        metadata: { digest: sha256(small) },
      });
    }
    await put(scene, small, 1000);
    await scene.write(root, [step(1n, 'named', { states: [state(undefined, { digest: sha256(small) })] })]);
    expect(await get(scene, sha256(small))).toEqual(small);
  });

  it('S4: if its trajectory is deleted meanwhile, a state that was named by its step is TRAJECTORY_NOT_FOUND', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const { digest } = await put(scene, randomBytes(MiB), MiB / 2);
    await scene.write(trajectory, [step(0n, 's', { states: [state(undefined, { digest })] })]);
    const reading = chunksOf(scene, { reference: { trajectoryId: trajectory.id, stepNumber: 0n } });
    await reading.next();
    await scene.rpc.deleteTrajectory({ trajectoryId: trajectory.id });
    await maintain(on.store, { stateTtlHours: 0, requestDays: 7 }, () => false);
    expect((await refusalOf(all(reading))).reason).toBe('TRAJECTORY_NOT_FOUND');
  });

  it('S6: HasStates returns existing states in request order, each once', async () => {
    const scene = on.scene();
    const one = await put(scene, Buffer.from('one'), 1);
    const two = await put(scene, Buffer.from('two'), 1);
    const digests = [two.digest, sha256('none'), one.digest, two.digest];
    expect(await scene.statesHere(digests)).toEqual([two, one]);
    expect(await scene.statesHere([one.digest, two.digest])).toEqual([one, two]);
    expect(await refusalOf(scene.statesHere([one.digest, 'X']))).toMatchObject({
      violations: [{ field: 'digests[1]' }],
    });
  });

  it('S2, S6: HasStates renews the requested states, and no others', async () => {
    const scene = on.scene();
    const [asked, other] = [await put(scene, Buffer.from('asked'), 5), await put(scene, Buffer.from('other'), 5)];
    const sql = await outsideSql(on.database);
    await sql.rows(
      `update states set renew_time = '2001-01-01T00:00:00.000000Z' where namespace = '${scene.caller.namespace}'`,
    );
    await sql.close();
    await scene.statesHere([asked.digest]);
    await maintain(on.store, { stateTtlHours: 24, requestDays: 7 }, () => false);
    const digests = [asked.digest, other.digest];
    expect(await scene.statesHere(digests)).toEqual([asked]);
  });

  it('S1, N1: another namespace sees no state of this one', async () => {
    const scene = on.scene();
    const { digest } = await put(scene, Buffer.from('secret'), 6);
    expect(await on.scene(scene.app).statesHere([digest])).toEqual([]);
    expect((await refusalOf(get(on.scene(), digest))).reason).toBe('STATE_NOT_FOUND');
  });

  it('S5: returns the states of a lineage in order, across any branch points, or every k-th of them', async () => {
    const scene = on.scene();
    const root = await scene.create();
    await scene.write(
      root,
      [0n, 1n, 2n, 3n].map((n) => step(n, 'r', { states: [state(`r${n}`)] })),
    );
    const branch = await scene.branch(root, 2n);
    await scene.write(branch, [
      step(3n, 'no state'),
      step(4n, 'b', { states: [state('b4'), state('m4', { name: 'agent' })] }),
      step(5n, 'b', { states: [state('')] }),
    ]);
    const leaf = await scene.branch(branch, 5n);
    await scene.write(leaf, [step(6n, 'l', { states: [state('l6', { mediaType: 'text/plain' })] })]);
    const read = (fields: Range = {}) => readAll(scene, leaf.id, fields);

    expect(await read()).toEqual({ 0: 'r0', 1: 'r1', 2: 'r2', 4: 'b4', 5: '', 6: 'l6' });
    expect(await read({ every: 2n })).toEqual({ 0: 'r0', 2: 'r2', 5: '' });
    expect(await read({ every: 3n, startStepNumber: 1n })).toEqual({ 1: 'r1', 5: '' });
    expect(await read({ startStepNumber: 1n, endStepNumber: 3n })).toEqual({ 1: 'r1', 2: 'r2' });
    expect(await read({ startStepNumber: 7n })).toEqual({});
    expect(await read({ endStepNumber: 100n, startStepNumber: 6n })).toEqual({ 6: 'l6' });
    expect(await read({ name: 'agent' })).toEqual({ 4: 'm4' });
    expect((await refusalOf(read({ startStepNumber: 8n }))).reason).toBe('RANGE_BEYOND_END');
    const messages = await all(readMany(scene, { range: { trajectoryId: leaf.id } }));
    expect(messages.map(({ trajectoryId }) => trajectoryId)).toEqual([root.id, branch.id, leaf.id]);
    expect(messages.at(-1)?.pieces[0]).toMatchObject({ mediaType: 'text/plain', size: 2n, offset: 0n });
  });

  it('S5: large states are sent in chunks of at most 256 KiB, and many small ones share a message', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const large = randomBytes(3 * MiB + 5);
    const { digest } = await put(scene, large, 200_000);
    const small = Array.from({ length: 300 }, (_, i) => step(BigInt(i), 's', { states: [state(`s${i}`)] }));
    await scene.write(trajectory, [...small, step(300n, 'large', { states: [state(undefined, { digest })] })]);
    const messages = await all(readMany(scene, { range: { trajectoryId: trajectory.id } }));
    expect(messages.length).toBeLessThan(20);
    for (const { pieces } of messages) {
      expect(pieces.reduce((sum, { data }) => sum + data.length, 0)).toBeLessThanOrEqual(LIMITS.chunkBytes);
    }
    const pieces = messages.flatMap((message) => message.pieces).filter((piece) => piece.stepNumber === 300n);
    expect(Buffer.concat(pieces.map(({ data }) => data)).equals(large)).toBe(true);
  });

  it('RD1, S5: a trajectory that is deleted meanwhile is TRAJECTORY_DELETED, never a short success', async () => {
    const scene = on.scene();
    const trajectory = await scene.create();
    const bytes = () => randomBytes(400 * 1024);
    await scene.write(
      trajectory,
      [0n, 1n].map((n) => step(n, 's', { states: [state(bytes())] })),
    );
    const reading = readMany(scene, { range: { trajectoryId: trajectory.id } });
    await reading.next();
    await scene.rpc.deleteTrajectory({ trajectoryId: trajectory.id });
    expect((await refusalOf(all(reading))).reason).toBe('TRAJECTORY_DELETED');
  });

  it('S10: returns states by their digests in order, each once, in pieces of a message, and the digests without a state', async () => {
    const scene = on.scene();
    const sizes = [0, 1, 20_000, LIMITS.chunkBytes, LIMITS.chunkBytes + 1, 3 * MiB + 5];
    const states = sizes.map((size) => randomBytes(size));
    for (const bytes of states) await put(scene, bytes, MiB / 4);
    const made = await scene.create();
    // Each state but the first is stored as changes of the one before.
    const chain = Array.from({ length: 40 }, (_, i) =>
      Buffer.concat([randomBytes(i + 1), Buffer.alloc(30_000, 'same')]),
    );
    await scene.write(made, [step(0n, 'small', { states: [state('small')] })]);
    await scene.write(
      made,
      chain.map((bytes, i) => step(BigInt(i + 1), 's', { states: [state(bytes)] })),
    );
    const wanted = [...states, ...chain];
    const digests = wanted.map((bytes) => sha256(bytes));
    const none = [sha256('none'), sha256('small')];
    const messages = await all(byDigest(scene, [none[0]!, ...digests, digests[3]!, none[1]!]));
    expect(messages[0]).toMatchObject({ unknownDigests: none, pieces: [] });
    for (const { pieces, unknownDigests } of messages.slice(1)) {
      expect(unknownDigests).toEqual([]);
      expect(pieces.length).toBeGreaterThan(0);
      expect(pieces.reduce((sum, { data }) => sum + data.length, 0)).toBeLessThanOrEqual(LIMITS.chunkBytes);
    }
    const pieces = messages.flatMap((message) => message.pieces);
    const begun = pieces.filter(({ offset }) => offset === 0n);
    expect(begun.map(({ digest, size }) => [digest, Number(size)])).toEqual(
      wanted.map((bytes, i) => [digests[i], bytes.length]),
    );
    for (const [i, digest] of digests.entries()) {
      const data = Buffer.concat(pieces.filter((piece) => piece.digest === digest).map((piece) => piece.data));
      expect(data.equals(wanted[i]!)).toBe(true);
    }
    expect(await refusalOf(all(byDigest(scene, [digests[0]!, 'X'])))).toMatchObject({
      violations: [{ field: 'digests[1]' }],
    });
    const elsewhere = await all(byDigest(on.scene(scene.app), digests));
    expect(elsewhere).toMatchObject([{ unknownDigests: digests, pieces: [] }]);
  });

  it('S10: returns a state for each reference in order, of any size, own or inherited, up to one that cannot be found', async () => {
    const scene = on.scene();
    const root = await scene.create();
    const large = randomBytes(2 * MiB + 3);
    const { digest } = await put(scene, large, MiB / 4);
    await scene.write(root, [
      step(0n, 'small', { states: [state('s0', { mediaType: 'text/plain' }), state('', { name: 'empty' })] }),
      step(1n, 'large', { states: [state(undefined, { digest })] }),
    ]);
    const leaf = await scene.branch(root, 1n);
    await scene.write(leaf, [step(2n, 'own', { states: [state('a'.repeat(9000))] }), step(3n, 'none')]);
    const at = (stepNumber: bigint, name = '', trajectoryId = leaf.id) => ({ trajectoryId, stepNumber, name });
    const references = [at(2n), at(0n), at(0n, 'empty'), at(1n), at(0n)];
    const messages = await all(readMany(scene, { references }));
    const found: unknown[] = [];
    for (const { trajectoryId, unknownDigests, pieces } of messages) {
      expect(unknownDigests).toEqual([]);
      expect(pieces.reduce((sum, { data }) => sum + data.length, 0)).toBeLessThanOrEqual(LIMITS.chunkBytes);
      for (const { offset, stepNumber, size, mediaType } of pieces) {
        if (offset === 0n) found.push([trajectoryId, stepNumber, Number(size), mediaType]);
      }
    }
    const small = [root.id, 0n, 2, 'text/plain'];
    expect(found).toEqual([
      [leaf.id, 2n, 9000, ''],
      small,
      [root.id, 0n, 0, ''],
      [root.id, 1n, large.length, ''],
      small,
    ]);
    const whole = messages.flatMap(({ pieces }) => pieces.filter((piece) => piece.digest === digest));
    expectBytes(Buffer.concat(whole.map(({ data }) => data)), large);

    for (const [reference, reason] of [
      [at(3n), 'STATE_NOT_FOUND'],
      [at(4n), 'STEP_NOT_FOUND'],
      [at(0n, '', '00000000-0000-4000-8000-000000000000'), 'TRAJECTORY_NOT_FOUND'],
    ] as const) {
      const reading = readMany(scene, { references: [at(0n), at(2n), reference, at(1n)] });
      expect((await reading.next()).value).toMatchObject({ trajectoryId: root.id, pieces: [{ size: 2n }] });
      expect(await refusalOf(all(reading))).toMatchObject({ reason });
    }
    const elsewhere = readMany(on.scene(scene.app), { references: [at(2n)] });
    expect((await refusalOf(all(elsewhere))).reason).toBe('TRAJECTORY_NOT_FOUND');
  });

  it('S10: 100 contents of 20 KB take a few statements, states that are stored as changes too', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const states = Array.from({ length: 100 }, (_, i) => Buffer.alloc(20_000, `state ${i} `));
    await scene.write(
      made,
      states.map((bytes, i) => step(BigInt(i), 's', { states: [state(bytes)] })),
    );
    const digests = states.map((bytes) => sha256(bytes));
    expect(await statementsOfWarm(on.engine, () => all(byDigest(scene, digests)))).toBeLessThan(20);
  });

  it('S11: returns a page of steps, and what they name of any size, each once', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const large = randomBytes(2 * MiB + 3);
    const { digest } = await put(scene, large, MiB / 4);
    const whole = [Buffer.from(''), Buffer.from('small'), randomBytes(20_000), randomBytes(LIMITS.chunkBytes), large];
    await scene.write(made, [
      step(0n, 'small', { states: [state('small', { name: 'one' }), state('', { name: 'empty' })] }),
      step(1n, 'unlisted', { states: [state('unlisted', { name: 'other' })] }),
      step(2n, 'medium', { states: [state(whole[2]!, { name: 'one' }), state('small', { name: 'again' })] }),
      step(3n, 'large', { states: [state(undefined, { name: 'one', digest }), state(whole[3]!, { name: 'two' })] }),
      step(4n, 'beyond the page', { states: [state('beyond', { name: 'one' })] }),
    ]);
    const source = { trajectoryId: made.id, stepNumber: 4n, taskId: 'task' };
    const { trajectory: branch } = await scene.rpc.branchTrajectory(source);
    const steps = { taskId: 'task', inherited: true, anyOfStates: ['one'], pageSize: 3, view: View.FULL };
    const messages = await all(readMany(scene, { steps }));
    const listed = await scene.rpc.listSteps(steps);
    expect(messages[0]).toMatchObject({ steps: listed.steps, nextPageToken: expect.stringMatching(/./u) });
    expect(listed.steps.map(({ heirId, step: found }) => [heirId, found?.stepNumber])).toEqual(
      [0n, 2n, 3n].map((number) => [branch?.id, number]),
    );
    for (const { steps: others, nextPageToken, pieces, trajectoryId } of messages.slice(1)) {
      expect([others, nextPageToken, trajectoryId]).toEqual([[], '', '']);
      expect(pieces.reduce((sum, { data }) => sum + data.length, 0)).toBeLessThanOrEqual(LIMITS.chunkBytes);
    }
    const pieces = messages.flatMap((message) => message.pieces);
    const begun = pieces.filter(({ offset }) => offset === 0n);
    expect(begun.map((piece) => piece.digest).sort()).toEqual(whole.map((bytes) => sha256(bytes)).sort());
    for (const bytes of whole) {
      const own = pieces.filter((piece) => piece.digest === sha256(bytes));
      expectBytes(Buffer.concat(own.map(({ data }) => data)), bytes);
      expect(new Set(own.map(({ size }) => Number(size)))).toEqual(new Set([bytes.length]));
    }
    const next = { ...steps, pageToken: messages[0]!.nextPageToken };
    const rest = await all(readMany(scene, { steps: next }));
    const last = {
      steps: [{ step: { stepNumber: 4n } }],
      nextPageToken: '',
      pieces: [{ digest: sha256('beyond') }],
    };
    expect(rest).toMatchObject([last]);
    for (const [field, wrong] of [
      ['inline_bytes', { inlineBytes: 1 }],
      ['min_reward', { minReward: Number.NaN }],
      ['metric_key', { metricKey: 'score' }],
    ] as const) {
      const { violations } = await refusalOf(all(readMany(scene, { steps: { ...steps, ...wrong } })));
      expect(violations[0]?.field).toBe(`steps.${field}`);
    }
    const none = await all(readMany(scene, { steps: { taskId: 'none' } }));
    expect(none).toMatchObject([{ steps: [], pieces: [], nextPageToken: '' }]);
  });

  it('S11: the small states of many steps come with them in one message, and take a few statements', async () => {
    const scene = on.scene();
    const made = await scene.create();
    await scene.write(
      made,
      Array.from({ length: 100 }, (_, i) => step(BigInt(i), 's', { states: [state(`state ${i}`)] })),
    );
    const read = () => all(readMany(scene, { steps: { trajectoryId: made.id, pageSize: 100 } }));
    const messages = await read();
    expect(messages).toHaveLength(1);
    expect(messages[0]?.pieces.map(({ data }) => `${Buffer.from(data)}`)).toEqual(
      Array.from({ length: 100 }, (_, i) => `state ${i}`),
    );
    expect(await statementsOfWarm(on.engine, read)).toBeLessThan(8);
  });

  it('S11: a state that is deleted while it is read is not complete, and the others are returned', async () => {
    const scene = on.scene();
    const made = await scene.create();
    const large = await put(scene, randomBytes(2 * MiB), MiB);
    await scene.write(made, [
      step(0n, 'large', { states: [state(undefined, { digest: large.digest })] }),
      step(1n, 'other', { states: [state('other')] }),
    ]);
    const reading = readMany(scene, { steps: { trajectoryId: made.id } });
    await reading.next();
    const begun = await reading.next();
    expect(begun.value?.pieces[0]?.digest).toBe(large.digest);
    await forget(large.digest);
    const pieces = (await all(reading)).flatMap((message) => message.pieces);
    const bytes = [...begun.value!.pieces, ...pieces].filter(({ digest }) => digest === large.digest);
    expect(bytes.reduce((sum, { data }) => sum + data.length, 0)).toBeLessThan(large.size);
    expect(pieces.at(-1)?.digest).toBe(sha256('other'));
  });

  it('S10: a state that is deleted while it is read is reported, and the others are returned', async () => {
    const scene = on.scene();
    const large = await put(scene, randomBytes(2 * MiB), MiB);
    const other = await put(scene, Buffer.from('other'), 5);
    const reading = byDigest(scene, [large.digest, other.digest]);
    const first = await reading.next();
    expect(first.value?.pieces[0]?.digest).toBe(large.digest);
    await forget(large.digest);
    const rest = await all(reading);
    expect(rest.flatMap(({ pieces }) => pieces).at(-1)?.digest).toBe(other.digest);
    expect(rest.at(-1)?.unknownDigests).toEqual([large.digest]);
  });

  it('W10: a state is attached to an own step once; a repetition changes nothing, a different one is refused', async () => {
    const scene = on.scene();
    const trajectory = await scene.createWith(['a', 'b']);
    const target = { trajectoryId: trajectory.id, writerEpoch: 1n, stepNumber: 1n };
    const attach = (text: string) => scene.rpc.attachState({ ...target, state: { data: Buffer.from(text) } });
    const attached = { name: 'env', digest: sha256('x'), mediaType: '', size: 1n };
    expect(await attach('x')).toMatchObject({ state: attached, duplicate: false });
    expect(await attach('x')).toMatchObject({ state: attached, duplicate: true });
    expect((await refusalOf(attach('y'))).reason).toBe('STATE_CONFLICT');
    const branch = await scene.branch(trajectory, 1n);
    const inherited = { trajectoryId: branch.id, stepNumber: 1n, state: { name: 'n', data: Buffer.from('z') } };
    expect((await refusalOf(scene.rpc.attachState(inherited))).reason).toBe('STEP_NOT_FOUND');
  });

  it('S3: a damaged state is STATE_CORRUPT, and its last bytes are never returned', async () => {
    const { store } = on;
    const scene = on.scene();
    const bytes = randomBytes(600 * 1024);
    const { digest } = await put(scene, bytes, 100_000);
    // The store claims that these bytes are verified, but they are not the state: the hash over the whole stream must
    // detect it.
    const lying = new Proxy(store, {
      get(target, name) {
        if (name !== 'readState') {
          const own = Reflect.get(target, name, target) as unknown;
          return typeof own === 'function' ? own.bind(target) : own;
        }
        return async (namespace: string, wanted: string, offset: number) => {
          const piece = Buffer.from(await store.readState(namespace, wanted, offset));
          if (offset === 0) piece[17]! ^= 1;
          return piece;
        };
      },
    });
    const app = on.app({}, lying);
    let given = 0;
    const reading = (async () => {
      for await (const { chunk } of chunksOf(scene, { digest }, app)) given += chunk.length;
    })();
    expect(await refusalOf(reading)).toMatchObject({ reason: 'STATE_CORRUPT', metadata: { digest } });
    expect(given).toBeLessThan(bytes.length);
    await app.close();
  });
});

type Range = Partial<Omit<StateRange, '$typeName'>>;

function readMany({ app, caller }: AppScene, source: MessageInitShape<typeof ReadStatesRequestSchema>) {
  return readStates(create(ReadStatesRequestSchema, source), callOf(app, caller));
}

function byDigest(scene: AppScene, digests: string[]) {
  return readMany(scene, { digests });
}

/** Compares by size and digest, because `toEqual` compares bytes one by one. */
function expectBytes(found: Uint8Array, expected: Uint8Array): void {
  expect([found.length, sha256(found)]).toEqual([expected.length, sha256(expected)]);
}

function put(scene: AppScene, bytes: Buffer, piece: number, digest?: string) {
  const pieces = Array.from({ length: Math.ceil(bytes.length / piece) }, (_, i) =>
    bytes.subarray(i * piece, (i + 1) * piece),
  );
  const chunks = (async function* () {
    yield* pieces;
  })();
  return putState(scene.app, scene.caller, { digest, chunks });
}

async function* chunksOf(
  { app: ownApp, caller }: AppScene,
  request: MessageInitShape<typeof GetStateRequestSchema>,
  app = ownApp,
): AsyncGenerator<GetStateResponse, void, undefined> {
  for await (const sent of getState(create(GetStateRequestSchema, request), callOf(app, caller)))
    yield sent.decode() as GetStateResponse;
}

async function get(scene: AppScene, digest: string, offset = 0, length?: number): Promise<Buffer> {
  const range = { offset: BigInt(offset), length: length === undefined ? undefined : BigInt(length) };
  const chunks = await all(chunksOf(scene, { digest, ...range }));
  return Buffer.concat(chunks.map(({ chunk }) => chunk));
}

/** The result of ReadStates, assembled: bytes as text by step number. */
async function readAll(scene: AppScene, trajectoryId: string, fields: Range): Promise<Record<string, string>> {
  const messages = await all(readMany(scene, { range: { trajectoryId, ...fields } }));
  const found: Record<string, string> = {};
  for (const { stepNumber, offset, data } of messages.flatMap(({ pieces }) => pieces)) {
    if (offset === 0n && found[`${stepNumber}`] !== undefined) throw new Error(`step ${stepNumber} came twice`);
    found[`${stepNumber}`] = (found[`${stepNumber}`] ?? '') + Buffer.from(data).toString();
  }
  return found;
}
