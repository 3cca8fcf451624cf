import { randomBytes } from 'node:crypto';
import process from 'node:process';
import { zstdDecompressSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import type { AnabranchError } from '../../src/domain/errors.ts';
import type { NewState } from '../../src/domain/step.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { makeStep, newState, smallRef, stateRef } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { putState, readWhole, refusalOf, type Scene } from './scene.ts';
import { stateOf, storedStates } from './state_chains.ts';
import { faultsOf } from './verified.ts';

const KIB = 1024;
const MIB = 1024 * KIB;
const CHUNK = 256 * KIB;

const BOMB_BYTES = 1024 * MIB;
/** Far less than the bomb, and more than garbage that is not collected yet. */
const ALLOWED_BYTES = 192 * MIB;

/** A frame of zstd that becomes a GiB of zeros: blocks of one repeated byte. */
const BOMB = bombOf(BOMB_BYTES);

function bombOf(bytes: number): Buffer {
  const block = 128 * KIB;
  const magic = [0x28, 0xb5, 0x2f, 0xfd];
  // Neither a size nor a checksum; a window of 1 MiB.
  const header = [0x00, 0x50];
  const blocks = Array.from({ length: bytes / block }, (_, i) => {
    const isLast = (i + 1) * block === bytes;
    const word = (block << 3) | (1 << 1) | (isLast ? 1 : 0);
    return [word & 0xff, (word >> 8) & 0xff, word >> 16, 0];
  });
  return Buffer.from([...magic, ...header, ...blocks.flat()]);
}

it('the bomb of these tests is valid zstd', () => {
  expect(zstdDecompressSync(bombOf(MIB))).toEqual(Buffer.alloc(MIB));
});

describeStore('zstd bombs', (on) => {
  interface Place {
    /** The row, by SQL. */
    readonly table: string;
    readonly where: string;
    /** Columns that say how many bytes the compressed ones become. */
    readonly size: string;
    readonly column: string;
    /** Reads what the bomb is in. */
    readonly reads: readonly (() => Promise<unknown>)[];
    readonly error: { readonly reason: string; readonly metadata: Record<string, string> };
    readonly fault: Record<string, unknown>;
    /** Reads what must not be affected. */
    readonly others: () => Promise<void>;
  }

  const numbersFrom = async (scene: Scene, made: Trajectory, from: bigint, to: bigint) => {
    const lineage = await scene.lineage(made);
    const range = { from, to, maxSteps: 300, maxBytes: 1e6 };
    const steps = await scene.store.readSteps(scene.namespace, made.ref.tree, lineage, range, 'FULL');
    return steps.map(({ step }) => Number(step.stepNumber));
  };

  /** Three rows of merged and compressed steps with small states: 0 to 255, 256 to 511, 512 to 599. */
  async function mergedSteps(scene: Scene): Promise<Trajectory> {
    const made = await scene.create();
    const steps = Array.from({ length: 600 }, (_, i) => makeStep(BigInt(i), { states: [smallRef(stateAt(i))] }));
    for (let at = 0; at < steps.length; at += 64) await scene.append(made, steps.slice(at, at + 64));
    for (let left = [{ ref: made.ref, rest: true }]; left.length > 0; ) left = await scene.store.mergeSteps(left);
    const rows = await on.sql.rows(
      `select first_step_number, encoding, states_bytes from segments where tree = ${made.ref.tree} order by 1`,
    );
    expect(rows.map((row) => [row.first_step_number, row.encoding].map(Number))).toEqual([
      [0, 2],
      [256, 2],
      [512, 2],
    ]);
    expect(rows.every(({ states_bytes }) => states_bytes !== null)).toBe(true);
    return made;
  }

  const stateAt = (i: number): NewState => newState(`the small state ${i}`);
  const readSmall = (scene: Scene, made: Trajectory, stepNumber: bigint) =>
    scene.store.readSmallStates(scene.namespace, { tree: made.ref.tree, owner: made.ref.key, stepNumber }, ['env']);

  async function inSteps(scene: Scene): Promise<Place> {
    const made = await mergedSteps(scene);
    return {
      table: 'segments',
      where: `tree = ${made.ref.tree} and first_step_number = 256`,
      size: 'body_bytes',
      column: 'body',
      reads: [() => numbersFrom(scene, made, 256n, 512n), () => readSmall(scene, made, 300n)],
      error: { reason: 'STEP_CORRUPT', metadata: { first_step_number: '256', next_step_number: '512' } },
      fault: { check: 'STEPS', trajectoryId: made.id, firstStepNumber: 256n, nextStepNumber: 512n },
      others: async () => {
        expect(await numbersFrom(scene, made, 0n, 256n)).toHaveLength(256);
        expect(await numbersFrom(scene, made, 512n, 600n)).toHaveLength(88);
      },
    };
  }

  async function inSmallStates(scene: Scene): Promise<Place> {
    const made = await mergedSteps(scene);
    return {
      table: 'segments',
      where: `tree = ${made.ref.tree} and first_step_number = 256`,
      size: 'states_bytes',
      column: 'states',
      reads: [() => readSmall(scene, made, 300n)],
      error: { reason: 'STATE_CORRUPT', metadata: { digest: stateAt(300).digest } },
      fault: { check: 'STATES', trajectoryId: made.id, digest: stateAt(300).digest },
      others: async () => {
        expect(await numbersFrom(scene, made, 256n, 512n)).toHaveLength(256);
        for (const i of [255, 512]) {
          const found = (await readSmall(scene, made, BigInt(i))).get('env');
          expect(Buffer.compare(found!, stateAt(i).data)).toBe(0);
        }
      },
    };
  }

  /** A chain of states, of which the bomb takes the place of one. */
  async function inChain(scene: Scene, bomb: 0 | 1): Promise<Place> {
    const made = await scene.create();
    const states = [0, 1, 2].map((i) => stateOf(7, 64 * KIB, [i]));
    const steps = states.map((state, i) => makeStep(BigInt(i), { states: [stateRef(state)] }));
    await scene.append(made, steps, { states });
    const stored = await storedStates(on.sql, scene.namespace);
    expect(states.map(({ digest }) => stored.get(digest)?.base !== undefined)).toEqual([false, true, true]);
    const { digest } = states[bomb]!;
    const hex = on.engine === 'sqlite' ? `x'${digest}'` : `'\\x${digest}'`;
    return {
      table: 'states',
      where: `namespace = '${scene.namespace}' and digest = ${hex}`,
      size: 'size',
      column: 'data',
      reads: [
        () => scene.store.readState(scene.namespace, digest, 0),
        () => scene.store.readWholeStates(scene.namespace, [digest]),
      ],
      error: { reason: 'STATE_CORRUPT', metadata: { digest } },
      fault: { check: 'STATES', digest },
      others: async () => {
        expect(await numbersFrom(scene, made, 0n, 3n)).toEqual([0, 1, 2]);
        // Those that depend on it cannot be restored either.
        const dependents = states.slice(bomb + 1);
        for (const each of dependents) {
          const refusal = await refusalOf(readWhole(scene.store, scene.namespace, each.digest));
          expect(refusal).toMatchObject({ reason: 'STATE_CORRUPT', metadata: { digest: each.digest } });
        }
        for (const { digest: other, data } of states.slice(0, bomb)) {
          expect(await readWhole(scene.store, scene.namespace, other)).toEqual(Buffer.from(data));
        }
      },
    };
  }

  async function inPiece(scene: Scene): Promise<Place> {
    const bytes = Buffer.concat([Buffer.alloc(2 * CHUNK, 'compresses well '), randomBytes(1000)]);
    const digest = await putState(scene.store, scene.namespace, bytes);
    return {
      table: 'state_chunks',
      where: `namespace = '${scene.namespace}' and ordinal = 1`,
      size: 'size',
      column: 'data',
      reads: [() => scene.store.readState(scene.namespace, digest, CHUNK)],
      error: { reason: 'STATE_CORRUPT', metadata: { digest } },
      fault: { check: 'STATES', digest },
      others: async () => {
        expect(Buffer.compare(await scene.store.readState(scene.namespace, digest, 0), bytes.subarray(0, CHUNK))).toBe(
          0,
        );
        const last = await scene.store.readState(scene.namespace, digest, 2 * CHUNK);
        expect(Buffer.compare(last, bytes.subarray(2 * CHUNK))).toBe(0);
      },
    };
  }

  const PLACES: Readonly<Record<string, (scene: Scene) => Promise<Place>>> = {
    'the steps of a row': inSteps,
    'the small states of a row': inSmallStates,
    'a whole state': (scene) => inChain(scene, 0),
    'a delta': (scene) => inChain(scene, 1),
    'a piece of a large state': inPiece,
  };

  describe.each(Object.keys(PLACES))('in %s', (name) => {
    it.each(['more than its row says', 'as much as its row says'])(
      'D5, S3, V1: bytes that become %s are DATA_LOSS with the place, take no memory, and are found',
      async (says) => {
        const scene = on.scene();
        const place = await PLACES[name]!(scene);
        const bytes = on.engine === 'sqlite' ? `x'${BOMB.toString('hex')}'` : `'\\x${BOMB.toString('hex')}'`;
        const size = says === 'as much as its row says' ? `, ${place.size} = ${BOMB_BYTES}` : '';
        await on.sql.rows(`update ${place.table} set ${place.column} = ${bytes}${size} where ${place.where}`);
        const before = peakBytes();
        for (const read of place.reads) {
          const refusal: AnabranchError = await refusalOf(read());
          expect(refusal).toMatchObject(place.error);
        }
        await place.others();
        const faults = (await faultsOf(on.store)).filter(({ namespace }) => namespace === scene.namespace);
        expect(faults).toContainEqual(expect.objectContaining(place.fault));
        expect(peakBytes() - before).toBeLessThan(ALLOWED_BYTES);
        // The verifications of later tests need not read it again.
        await on.sql.rows(`delete from ${place.table} where ${place.where}`);
      },
    );
  });
});

/** The most memory that this process ever had. */
function peakBytes(): number {
  return process.resourceUsage().maxRSS * KIB;
}
