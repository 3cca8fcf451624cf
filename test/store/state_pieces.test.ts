import { randomBytes } from 'node:crypto';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { dose } from '../support/dose.ts';
import { makeStep, sha256 } from '../support/steps.ts';
import { collectUnused } from './collection.ts';
import { describeStore } from './on_store.ts';
import { putState, readWhole, refusalOf, type Scene } from './scene.ts';
import { countRows } from './sql.ts';
import { statementsOfWarm } from './statement_count.ts';

const CHUNK = 256 * 1024;

/** A state in an upload with a step that refers to it. */
interface Kept {
  readonly digest: string;
  readonly bytes: Buffer;
  readonly made: Trajectory;
}

describeStore('large states with equal pieces', (on) => {
  /** Stores a state that a step of a new trajectory refers to. */
  async function keep(scene: Scene, bytes: Buffer, base?: string): Promise<Kept> {
    const digest = await putState(scene.store, scene.namespace, bytes, CHUNK, base);
    const made = await scene.create();
    const state = { name: 'env', digest, mediaType: '', size: bytes.length };
    await scene.append(made, [makeStep(0n, { states: [state] })]);
    return { digest, bytes, made };
  }

  const chunksOf = async (scene: Scene) => {
    const rows = await on.sql.rows(`select count(*) as n, count(data) as stored, count(piece_upload) as refs
      from state_chunks where namespace = '${scene.namespace}'`);
    return { all: Number(rows[0]?.n), stored: Number(rows[0]?.stored), dependents: Number(rows[0]?.refs) };
  };

  async function readBack(scene: Scene, states: readonly Kept[], offset = 0): Promise<void> {
    for (const { digest, bytes } of states) {
      const read = await readWhole(scene.store, scene.namespace, digest, offset);
      expect(Buffer.compare(read, bytes.subarray(offset))).toBe(0);
    }
  }

  /** No chunk may need a reference or a missing chunk. */
  async function checkReferences(scene: Scene): Promise<void> {
    const dangling = await on.sql.rows(`select c.ordinal from state_chunks as c
      left join state_chunks as p on p.upload = c.piece_upload and p.ordinal = c.ordinal and p.data is not null
      where c.namespace = '${scene.namespace}' and (c.data is null or c.piece_upload is not null) and p.upload is null`);
    expect(dangling).toEqual([]);
  }

  /** Returns the bytes of the chunks with data of their own that depend on another chunk, in order of size. */
  async function deltasOf(scene: Scene): Promise<number[]> {
    const rows = await on.sql.rows(`select octet_length(data) as n from state_chunks
      where namespace = '${scene.namespace}' and piece_upload is not null and data is not null order by n`);
    return rows.map(({ n }) => Number(n));
  }

  it('S9: a piece that equals the one of the base at its place is stored once', async () => {
    const scene = on.scene();
    const bytes = randomBytes(5 * CHUNK + 100);
    const first = await keep(scene, bytes.subarray(0, 4 * CHUNK + 100));
    const second = await keep(scene, bytes, first.digest);
    const edited = Buffer.from(bytes);
    edited[CHUNK] = edited[CHUNK]! ^ 1;
    const third = await keep(scene, edited, second.digest);
    expect(await chunksOf(scene)).toEqual({ all: 5 + 6 + 6, stored: 5 + 2 + 1, dependents: 4 + 6 });
    await checkReferences(scene);
    await readBack(scene, [first, second, third]);
  });

  it('S4: the pieces of a state are stored four in a transaction', async () => {
    const scene = on.scene();
    const put = (pieces: number) =>
      statementsOfWarm(on.engine, () => putState(scene.store, scene.namespace, randomBytes(pieces * CHUNK), CHUNK));
    const four = (await put(9)) - (await put(5));
    expect(four).toBeGreaterThan(0);
    // To begin, to renew the upload, to insert the pieces, to commit.
    expect(four).toBeLessThanOrEqual(4);
  });

  it('S9: a piece that differs little from the one of the base is stored as what changed, over at most 32 deltas', async () => {
    const scene = on.scene();
    let bytes = randomBytes(CHUNK + 3000);
    const kept = [await keep(scene, bytes)];
    for (let i = 0; i < 35; i += 1) {
      bytes = Buffer.concat([bytes, randomBytes(1000)]);
      randomBytes(8).copy(bytes, i * 100);
      kept.push(await keep(scene, bytes, kept.at(-1)!.digest));
    }
    const deltas = await deltasOf(scene);
    // Of each state, both pieces. One in 33 is whole.
    expect(deltas).toHaveLength(2 * 34);
    expect(Math.max(...deltas)).toBeLessThan(2000);
    expect(await chunksOf(scene)).toEqual({ all: 2 * 36, stored: 2 * 36, dependents: 2 * 34 });
    // Each is read through those before it: 32 is read through all others of its chain.
    const fewer = [0, 1, 16, 31, 32, 33, 35].map((i) => kept[i]!);
    await readBack(scene, dose(fewer, kept));
    await deleteOneByOne(scene, kept, (left) =>
      readBack(
        scene,
        left.filter((_, i) => i % 8 === 0 || i === left.length - 1),
      ),
    );
  });

  it('S9: a piece has at most 32 deltas; the next one is stored whole', async () => {
    const scene = on.scene();
    const bytes = randomBytes(CHUNK + 3000);
    const first = await keep(scene, bytes);
    const others: Kept[] = [];
    for (let i = 0; i < 34; i += 1) {
      const edited = Buffer.from(bytes);
      edited.writeUInt32LE(i, CHUNK + 1000);
      others.push(await keep(scene, edited, first.digest));
    }
    expect(await deltasOf(scene)).toHaveLength(32);
    const all = [first, ...others];
    // Their first pieces are one.
    const fewer = (left: readonly Kept[]) => [...left.slice(0, 1), ...left.slice(-1)];
    await readBack(scene, dose(fewer(all), all));
    await readBack(scene, all, CHUNK);
    await deleteOneByOne(scene, all, async (left) => {
      await readBack(scene, dose(fewer(left), left));
      await readBack(scene, dose(fewer(left), left), CHUNK);
    });
  });

  it('S3, S9: a delta of a damaged piece is reported as damaged, also after the piece was deleted', async () => {
    const scene = on.scene();
    const bytes = randomBytes(CHUNK + 3000);
    const first = await keep(scene, bytes);
    const edited = Buffer.from(bytes);
    edited[5] = edited[5]! ^ 1;
    const second = await keep(scene, edited, first.digest);
    expect(await deltasOf(scene)).toHaveLength(1);
    const flipped = on.engine === 'sqlite' ? "x'00'" : String.raw`'\x00'`;
    await on.sql.rows(`update state_chunks set data = ${flipped} where namespace = '${scene.namespace}'
      and ordinal = 0 and piece_upload is null returning 1 as n`);
    const refusal = { reason: 'STATE_CORRUPT', metadata: { digest: second.digest } };
    expect(await refusalOf(readWhole(scene.store, scene.namespace, second.digest))).toMatchObject(refusal);
    await scene.delete(first.made);
    await collectUnused(scene.store);
    expect(await deltasOf(scene)).toEqual([]);
    expect(await refusalOf(readWhole(scene.store, scene.namespace, second.digest))).toMatchObject(refusal);
    await scene.delete(second.made);
    await collectUnused(scene.store);
    expect(Object.values(await countRows(on.sql, scene.namespace)).every((n) => n === 0)).toBe(true);
  });

  async function deleteOneByOne(
    scene: Scene,
    kept: readonly Kept[],
    readLeft: (left: readonly Kept[]) => Promise<void>,
  ): Promise<void> {
    for (const [i, { made }] of kept.entries()) {
      await scene.delete(made);
      if (i % 20 !== 0) continue;
      await collectUnused(scene.store);
      await checkReferences(scene);
      await readLeft(kept.slice(i + 1));
    }
    await collectUnused(scene.store);
    expect(Object.values(await countRows(on.sql, scene.namespace)).every((n) => n === 0)).toBe(true);
  }

  it('S2, S9: states are deleted in any order, and the others keep their bytes', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.record({ base: fc.nat(10), changed: fc.nat(2), remove: fc.nat(10) }), {
          minLength: 3,
          maxLength: 7,
        }),
        async (changes) => {
          const scene = on.scene();
          let kept = [await keep(scene, randomBytes(2 * CHUNK + 3000))];
          for (const { base, changed, remove } of changes) {
            const from = kept[base % kept.length]!;
            const bytes = Buffer.from(from.bytes);
            randomBytes(16).copy(bytes, changed * CHUNK);
            kept.push(await keep(scene, bytes, from.digest));
            if (remove < kept.length - 1) {
              const removed = kept[remove]!;
              await scene.delete(removed.made);
              await collectUnused(scene.store);
              expect(await scene.store.findStates(scene.namespace, [removed.digest], false)).toEqual([]);
              kept = kept.filter((each) => each !== removed);
            }
          }
          await checkReferences(scene);
          await readBack(scene, kept);
          for (const { made } of kept) await scene.delete(made);
          await collectUnused(scene.store);
          expect(Object.values(await countRows(on.sql, scene.namespace)).every((n) => n === 0)).toBe(true);
        },
      ),
      { numRuns: dose(3, 12), seed: 22 },
    );
  });

  it('S9: a base that is unknown, small, of another namespace or damaged changes nothing', async () => {
    const scene = on.scene();
    const bytes = randomBytes(2 * CHUNK);
    const [small, elsewhere] = [await keep(scene, randomBytes(100)), await keep(on.scene(), bytes)];
    for (const base of [sha256('unknown'), small.digest, elsewhere.digest, sha256(bytes)]) {
      await putState(scene.store, scene.namespace, bytes, CHUNK, base);
      await putState(scene.store, scene.namespace, Buffer.concat([bytes, Buffer.from(base)]), CHUNK, base);
    }
    expect((await chunksOf(scene)).dependents).toBe(2);
    const flipped =
      on.engine === 'sqlite' ? "cast(x'00' || substr(data, 2) as blob)" : 'set_byte(data, 0, 255 - get_byte(data, 0))';
    await on.sql.rows(
      `update state_chunks set data = ${flipped} where namespace = '${scene.namespace}' and ordinal = 0 returning 1 as n`,
    );
    const refusal = await refusalOf(readWhole(scene.store, scene.namespace, sha256(bytes)));
    expect(refusal).toMatchObject({ reason: 'STATE_CORRUPT', metadata: { digest: sha256(bytes) } });
    const next = await keep(scene, Buffer.concat([bytes, Buffer.from('next')]), sha256(bytes));
    await readBack(scene, [next]);
  });

  it('S2, S9: an upload that refers to a state during its collection keeps its bytes', async () => {
    const scene = on.scene();
    for (let round = 0; round < dose(5, 20); round += 1) {
      const bytes = randomBytes(2 * CHUNK);
      const base = await putState(scene.store, scene.namespace, bytes);
      const longer = Buffer.concat([bytes, Buffer.from(`${round}`)]);
      const [kept] = await Promise.all([keep(scene, longer, base), collectUnused(scene.store)]).catch((error) => {
        // The new state itself may be collected before its step exists.
        expect(error).toMatchObject({ reason: expect.stringMatching('STATE_NOT_FOUND|DEADLINE_EXCEEDED') });
        return [];
      });
      await checkReferences(scene);
      if (kept !== undefined) await readBack(scene, [kept]);
    }
  });
});
