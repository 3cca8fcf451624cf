import { sql } from 'kysely';
import { AnabranchError } from '../../../../domain/errors.ts';
import { clipRanges, type OwnedRange, rangesOf, type TreeRange } from '../../../../domain/lineage.ts';
import { ownBegin } from '../../../../domain/trajectory.ts';
import type { EncodedSteps, StepView, TrajectoryRange } from '../../../contract/step.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { NamedStates } from '../states/named_states.ts';
import { findAncestors } from '../trajectory/lineage.ts';
import { MOST_RANGES, rangeTable } from '../trajectory/range_table.ts';
import { PageEncoder } from './page_encoder.ts';
import { type AttachedStates, attachedIn, type OwnedSegment, readStored, selectStored } from './read_stored.ts';
import { addAll, encodedBytes, MANY_STEPS, type PageSegment, searchedSegments } from './steps.ts';

export async function readEncodedRanges(
  scope: ReadScope,
  wanted: readonly TrajectoryRange[],
  view: StepView,
  inlineBytes = 0,
): Promise<EncodedSteps[][]> {
  const lineages = await lineagesOf(scope, wanted);
  const { segments, attached } = await readSegments(scope, unionOf(wanted, lineages), inlineBytes > 0);
  let count = 0n;
  for (const { from, to } of wanted) count += to - from;
  if (count >= MANY_STEPS) await scope.engine.slots.take(scope.namespace);
  return wanted.map(({ from }, i) => {
    const rows = lineages[i]!.flatMap((range) => partsOf(range, segments.get(range.key) ?? []));
    const encoder = new PageEncoder(view, encodedBytes(rows, view));
    const page = { rows, from, maxBytes: Number.MAX_SAFE_INTEGER, cutAt: undefined };
    const named = inlineBytes > 0 ? new NamedStates(view, inlineBytes) : undefined;
    addUntilDamage(encoder, page, attached, named);
    return encoder.parts();
  });
}

/** Returns the ranges that own the wanted steps; none for a trajectory with many ancestors. */
async function lineagesOf(scope: ReadScope, wanted: readonly TrajectoryRange[]): Promise<readonly OwnedRange[][]> {
  const inheriting = wanted.filter(({ trajectory, from }) => from < ownBegin(trajectory));
  const chainOf = await findAncestors(
    scope,
    inheriting.map(({ trajectory }) => trajectory),
  );
  return wanted.map(({ trajectory, from, to }) => {
    const { key } = trajectory.ref;
    if (from >= ownBegin(trajectory)) return from < to ? [{ key, from, to }] : [];
    const chain = chainOf(trajectory);
    return chain === undefined ? [] : clipRanges(rangesOf(chain, trajectory.nextStepNumber), from, to);
  });
}

/** Joins the ranges of each owner, so that steps that several trajectories share are read once. */
function unionOf(wanted: readonly TrajectoryRange[], lineages: readonly OwnedRange[][]): TreeRange[] {
  const union = new Map<bigint, TreeRange>();
  for (const [i, ranges] of lineages.entries()) {
    const { tree } = wanted[i]!.trajectory.ref;
    for (const { key, from, to } of ranges) {
      const known = union.get(key) ?? { tree, key, from, to };
      union.set(key, {
        ...known,
        from: from < known.from ? from : known.from,
        to: to > known.to ? to : known.to,
      });
    }
  }
  return [...union.values()].slice(0, MOST_RANGES);
}

interface Segments {
  /** By owner, in order of step number. */
  readonly segments: ReadonlyMap<bigint, readonly OwnedSegment[]>;
  readonly attached: AttachedStates;
}

async function readSegments(
  { engine, namespace }: ReadScope,
  ranges: readonly TreeRange[],
  withStates: boolean,
): Promise<Segments> {
  if (ranges.length === 0) return { segments: new Map(), attached: undefined };
  const query = selectStored(engine, {
    beginning: sql`with ${rangeTable(engine, ranges)}, ${searchedSegments(engine)}`,
    segments: sql`from p
      cross join ${engine.sql.table('trajectories')} as o
      cross join ${engine.sql.table('segments')} as s
      where o.tree = p.tree and o.key = p.key and o.namespace = ${namespace}
        and s.tree = p.tree and s.trajectory = p.key and s.first_step_number >= p.first and s.first_step_number < p.hi`,
    attached: attachedIn(engine, namespace),
    withStates,
  });
  const { segments, attached } = await readStored(engine, query);
  return { segments: Map.groupBy(segments, ({ owner }) => owner.key), attached };
}

/** Adds the steps of a page until one is missing or damaged. */
function addUntilDamage(...args: Parameters<typeof addAll>): void {
  try {
    addAll(...args);
  } catch (error) {
    if (!(error instanceof AnabranchError)) throw error;
  }
}

/** Returns the segments that have steps of the range, with the part of each. */
function partsOf({ from, to }: OwnedRange, segments: readonly OwnedSegment[]): PageSegment[] {
  return segments.flatMap((found) => {
    const { first_step_number: first, next_step_number: next } = found.segment;
    const [begin, end] = [first > from ? first : from, next < to ? next : to];
    return begin < end ? [{ ...found, begin, end }] : [];
  });
}
