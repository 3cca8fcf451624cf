import { sql } from 'kysely';
import type { Digest } from '../../../../domain/ids.ts';
import type { OwnedRange, TreeLineage, TreeRange } from '../../../../domain/lineage.ts';
import { addReward, type Step } from '../../../../domain/step.ts';
import {
  type ContentValue,
  contentValue,
  type SeriesQuery,
  SeriesSampler,
  type StepSeries,
} from '../../../../domain/step_series.ts';
import { rewardsOf } from '../../kit/running_sums.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { readReal } from '../../kit/values.ts';
import { SegmentCursor } from '../read/segment.ts';
import { readPage, searchedSegments } from '../read/steps.ts';
import { readWholeStates } from '../states/whole_states.ts';
import { MOST_RANGES, rangeTable } from '../trajectory/range_table.ts';

/** RD9: rewards are read from columns, by few statements for all lineages; all other values from the steps. */
export async function readStepSeries(
  scope: ReadScope,
  of: readonly TreeLineage[],
  query: SeriesQuery,
): Promise<StepSeries[]> {
  const samplers = of.map(({ lineage }) => new SeriesSampler(lineage[0]?.from ?? 0n, lineage.at(-1)?.to ?? 0n, query));
  const { value } = query;
  switch (value.of) {
    case 'REWARD':
    case 'REWARD_SUM':
    case 'REWARD_MEAN':
      await sampleRewards(scope, of, samplers, value.of === 'REWARD_SUM');
      break;
    default:
      await sampleAllContents(scope, of, samplers, value);
  }
  return samplers.map((sampler) => sampler.series());
}

/** Steps that one statement reads the rewards of, so that parsing them is short. */
const PIECE_STEPS = 65_536n;

type RewardRow = [trajectory: number, first: number, next: number, rewardSum: number | string, rewards: string];

/** A part of a lineage, and what takes its values. */
interface Part {
  readonly range: OwnedRange;
  readonly sampler: SeriesSampler;
}

async function sampleRewards(
  { engine, namespace }: ReadScope,
  of: readonly TreeLineage[],
  samplers: readonly SeriesSampler[],
  sums: boolean,
): Promise<void> {
  const parts = new Map<bigint, Part[]>();
  const union = new Map<bigint, TreeRange>();
  for (const [i, { tree, lineage }] of of.entries()) {
    for (const range of lineage) {
      parts.set(range.key, [...(parts.get(range.key) ?? []), { range, sampler: samplers[i]! }]);
      const { from, to } = union.get(range.key) ?? range;
      union.set(range.key, { ...range, tree, from: least(from, range.from), to: greatest(to, range.to) });
    }
  }
  for (const piece of pieces([...union.values()])) {
    const base = piece.map(({ from }) => from).reduce(least);
    const rows = await engine.reads.rows<RewardRow>(sql`with ${rangeTable(engine, piece)}, ${searchedSegments(engine)}
      select s.trajectory, s.first_step_number - ${base}, s.next_step_number - ${base}, s.reward_sum, s.rewards
      from p cross join ${engine.sql.table('trajectories')} as o cross join ${engine.sql.table('segments')} as s
      where o.tree = p.tree and o.key = p.key and o.namespace = ${namespace}
        and s.tree = p.tree and s.trajectory = p.key and s.first_step_number >= p.first and s.first_step_number < p.hi`);
    await engine.slots.take(namespace);
    const asked = new Map(piece.map((range) => [range.key, range]));
    for (const [trajectory, first, next, rewardSum, rewards] of rows) {
      const range = asked.get(BigInt(trajectory))!;
      const read = rewardsOf(rewards);
      const values = sums ? runningSums(readReal(rewardSum), read) : read;
      const segment = { from: base + BigInt(first), to: base + BigInt(next) };
      for (const part of parts.get(range.key) ?? []) {
        const from = greatest(greatest(part.range.from, range.from), segment.from);
        const to = least(least(part.range.to, range.to), segment.to);
        if (from < to)
          part.sampler.addAll(segment.from, values, Number(from - segment.from), Number(to - segment.from));
      }
    }
  }
}

function runningSums(before: number, rewards: readonly (number | undefined)[]): Float64Array {
  const sums = new Float64Array(rewards.length);
  let sum = before;
  for (const [i, reward] of rewards.entries()) {
    sum = addReward(sum, reward);
    sums[i] = sum;
  }
  return sums;
}

/** Divides ranges, of which each owner has one, into what single statements read. An owner is at most once in each. */
function* pieces(ranges: readonly TreeRange[]): Generator<TreeRange[]> {
  let piece: TreeRange[] = [];
  let room = PIECE_STEPS;
  for (const range of ranges) {
    for (let from = range.from; from < range.to; ) {
      const to = least(range.to, from + room);
      piece.push({ ...range, from, to });
      room -= to - from;
      from = to;
      if (room > 0n && piece.length < MOST_RANGES) continue;
      yield piece;
      [piece, room] = [[], PIECE_STEPS];
    }
  }
  if (piece.length > 0) yield piece;
}

/** Lineages whose contents are read at a time. */
const TOGETHER = 4;

async function sampleAllContents(
  scope: ReadScope,
  of: readonly TreeLineage[],
  samplers: readonly SeriesSampler[],
  value: ContentValue,
): Promise<void> {
  const all = of.entries();
  const readNext = async () => {
    for (const [i, lineage] of all) await sampleContents(scope, lineage, samplers[i]!, value);
  };
  await Promise.all(Array.from({ length: TOGETHER }, readNext));
}

/** Bytes that one statement reads of the contents of steps. */
const PAGE_BYTES = 512 * 1024;

async function sampleContents(
  scope: ReadScope,
  { tree, lineage }: TreeLineage,
  sampler: SeriesSampler,
  value: ContentValue,
): Promise<void> {
  const to = lineage.at(-1)?.to ?? 0n;
  const view = value.of === 'METRIC' ? 'BASIC' : 'FULL';
  for (let from = lineage[0]?.from ?? 0n; from < to; ) {
    const { rows } = await readPage(scope, tree, lineage, { from, to, maxBytes: PAGE_BYTES });
    const before = from;
    const waiting: WaitingStep[] = [];
    for (const { segment, begin, end } of rows) {
      if (begin !== from) break;
      if (begin > before) await scope.engine.slots.take(scope.namespace);
      for (const at = new SegmentCursor(segment); at.stepNumber < end - 1n && at.next(); ) {
        if (at.stepNumber < begin) continue;
        const step = at.read(view);
        const states: Digest[] = [];
        const found = contentValue(step, value, (digest) => {
          states.push(digest as Digest);
          return undefined;
        });
        if (states.length > 0) waiting.push({ step, states });
        else if (found !== undefined) sampler.add(at.stepNumber, found);
      }
      from = end;
    }
    await sampleTensorStates(scope, waiting, sampler, value);
    if (from === before) return;
  }
}

/** A step whose value is in a tensor whose items one of these states may have. */
interface WaitingStep {
  readonly step: Step;
  readonly states: readonly Digest[];
}

/** States that one statement reads: each has at most the bytes of 4,096 numbers. */
const STATES_TOGETHER = 32;

async function sampleTensorStates(
  scope: ReadScope,
  waiting: readonly WaitingStep[],
  sampler: SeriesSampler,
  value: ContentValue,
): Promise<void> {
  for (let at = 0; at < waiting.length; at += STATES_TOGETHER) {
    const some = waiting.slice(at, at + STATES_TOGETHER);
    const found = await readWholeStates(scope, [...new Set(some.flatMap(({ states }) => states))]);
    await scope.engine.slots.take(scope.namespace);
    for (const { step } of some) {
      const number = contentValue(step, value, (digest) => found.get(digest as Digest));
      if (number !== undefined) sampler.add(step.stepNumber, number);
    }
  }
}

function least(a: bigint, b: bigint): bigint {
  return a < b ? a : b;
}

function greatest(a: bigint, b: bigint): bigint {
  return a > b ? a : b;
}
