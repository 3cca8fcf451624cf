import { hash } from 'node:crypto';
import { type Compilable, type RawBuilder, sql } from 'kysely';
import { AnabranchError } from '../../../../domain/errors.ts';
import { clipRanges, type OwnedRange, ownerOf } from '../../../../domain/lineage.ts';
import type { EncodedSteps, OwnedStep, StepOutline, StepRange, StepView } from '../../../contract/step.ts';
import type { Engine } from '../../kit/engine.ts';
import { nextIteration } from '../../kit/reading/slots.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { NamedStates } from '../states/named_states.ts';
import { lineageTable } from '../trajectory/range_table.ts';
import { isOwn, type SearchedPlace } from './named_segments.ts';
import { PageEncoder, type PageStep } from './page_encoder.ts';
import {
  type AttachedStates,
  attachedIn,
  attachedTo,
  type OwnedSegment,
  readStored,
  type StoredRow,
  selectStored,
} from './read_stored.ts';
import { SegmentCursor, storedStep } from './segment.ts';
import { columnOfSegment, indexedTo } from './segment_lookup.ts';
import { BODY_BYTES, bytesOf } from './stored_body.ts';

export async function readSteps(
  scope: ReadScope,
  tree: bigint,
  lineage: readonly OwnedRange[],
  range: StepRange,
  view: StepView,
): Promise<OwnedStep[]> {
  const { page, attached } = await readRange(scope, tree, lineage, range);
  const steps: OwnedStep[] = [];
  forEachStep(page, ({ owner, at }) => {
    steps.push({ owner, step: storedStep(at, attachedTo(attached, owner.key, at.stepNumber), view) });
  });
  return steps;
}

/** Like `readSteps`. Only steps that states were attached to are decoded. */
export async function readEncodedSteps(
  scope: ReadScope,
  tree: bigint,
  lineage: readonly OwnedRange[],
  range: StepRange,
  view: StepView,
): Promise<EncodedSteps[]> {
  const { page, attached } = await readRange(scope, tree, lineage, range);
  return encodePage(page, attached, view, range.inlineBytes);
}

/** Encodes the steps of a page, with the states that they name if `inlineBytes` is set. Errors: STEP_CORRUPT. */
function encodePage(page: Page, attached: AttachedStates, view: StepView, inlineBytes = 0): EncodedSteps[] {
  const encoder = new PageEncoder(view, encodedBytes(page.rows, view));
  addAll(encoder, page, attached, inlineBytes > 0 ? new NamedStates(view, inlineBytes) : undefined);
  return encoder.parts();
}

/** Adds the steps of a page to an encoder. Errors: STEP_CORRUPT. */
export function addAll(
  encoder: PageEncoder,
  page: Page,
  attached: AttachedStates,
  named: NamedStates | undefined,
): void {
  const add = (found: FoundStep) => {
    const { owner, at, row } = found;
    const states = attachedTo(attached, owner.key, at.stepNumber);
    encoder.add(found, states, named?.of(row, at, states));
  };
  forEachStep(page, add, true);
}

/** Bytes that the server adds to a step: its tag and length, commit time, epoch and reward sum. */
const ADDED_BYTES = 40;
/** Usual size of a step of the BASIC view. */
const BASIC_BYTES = 64;

/** Estimates the size of encoded steps. Those of the BASIC view are small, whatever the steps have. */
export function encodedBytes(rows: readonly PageSegment[], view: StepView): number {
  let bytes = 0;
  for (const { segment, begin, end } of rows) {
    const share = Number(end - begin) / Number(segment.next_step_number - segment.first_step_number);
    const sent = view === 'BASIC' ? Number(end - begin) * BASIC_BYTES : bytesOf(segment) * share;
    bytes += sent + ADDED_BYTES * Number(end - begin);
  }
  return Math.ceil(bytes);
}

async function readRange(scope: ReadScope, tree: bigint, lineage: readonly OwnedRange[], range: StepRange) {
  const { from, maxBytes, inlineBytes = 0 } = range;
  const last = from + BigInt(range.maxSteps);
  const to = last < range.to ? last : range.to;
  const { rows, attached } = await readPage(scope, tree, lineage, { from, to, maxBytes, withStates: inlineBytes > 0 });
  return { page: { rows, from, maxBytes, cutAt: to < range.to ? to : undefined }, attached };
}

export async function readOutlines(
  scope: ReadScope,
  tree: bigint,
  lineage: readonly OwnedRange[],
  from: bigint,
  limit: number,
): Promise<StepOutline[]> {
  const to = from + BigInt(limit);
  const outlines: StepOutline[] = [];
  for (let next = from; next < to; ) {
    if (next > from) await nextIteration();
    const { rows } = await readPage(scope, tree, lineage, { from: next, to, maxBytes: OUTLINE_BYTES });
    const before = outlines.length;
    forEachStep({ rows, from: next, maxBytes: OUTLINE_BYTES, cutAt: undefined }, ({ at }) => {
      outlines.push({
        stepNumber: at.stepNumber,
        reward: at.reward,
        hash: hash('sha256', at.sentBytes, 'hex'),
      });
    });
    if (outlines.length === before) break;
    next += BigInt(outlines.length - before);
  }
  return outlines;
}

/** Bytes that one statement reads for outlines. */
const OUTLINE_BYTES = 512 * 1024;

/** Pages with fewer steps do not wait for a slot, because waiting takes longer than reading them. */
export const MANY_STEPS = 32n;

interface PageRange {
  readonly from: bigint;
  readonly to: bigint;
  readonly maxBytes: number;
  readonly withStates?: boolean;
}

/** A segment of a page, with the part [begin, end) that the lineage has of it. */
export interface PageSegment extends OwnedSegment {
  readonly begin: bigint;
  readonly end: bigint;
}

interface SegmentPage {
  /** In order of step number. */
  readonly rows: readonly PageSegment[];
  readonly attached: AttachedStates;
}

/**
 * Reads the segments of a page, and the states that were attached to their steps, in one statement. Running
 * byte sums turn a page of bounded size into a range condition. The first segment may exceed `maxBytes`. What the
 * caller does with many steps in the same iteration of the event loop belongs to a slot (A5).
 */
export async function readPage(
  { engine, namespace }: ReadScope,
  tree: bigint,
  lineage: readonly OwnedRange[],
  { from, to, maxBytes, withStates = false }: PageRange,
): Promise<SegmentPage> {
  const window = clipRanges(lineage, from, to);
  if (window.length === 0) return { rows: [], attached: undefined };
  const page = { namespace, tree, owner: ownerOf(lineage, from), from, maxBytes: BigInt(maxBytes), withStates };
  const query = window.length === 1 ? selectOwned(engine, page, window[0]!) : selectPage(engine, page, window);
  const stored = await readStored(engine, query, from);
  const ranges = new Map(window.map((range) => [range.key, range]));
  let count = 0n;
  const rows = stored.segments.map((found) => {
    const { first_step_number: first, next_step_number: next } = found.segment;
    const range = ranges.get(found.owner.key)!;
    const begin = first > range.from ? first : range.from;
    const end = next < range.to ? next : range.to;
    count += end - begin;
    return { ...found, begin, end };
  });
  if (count >= MANY_STEPS) await engine.slots.take(namespace);
  return { rows, attached: stored.attached };
}

interface PageQuery {
  readonly namespace: string;
  readonly tree: bigint;
  /** The owner of step `from`. */
  readonly owner: bigint | undefined;
  readonly from: bigint;
  readonly maxBytes: bigint;
  readonly withStates: boolean;
}

function selectPage(engine: Engine, page: PageQuery, window: readonly OwnedRange[]): RawBuilder<StoredRow> {
  const { namespace, tree, owner, from, maxBytes, withStates } = page;
  return selectStored(engine, {
    from,
    beginning: sql`with ${lineageTable(engine, tree, window)}, ${searchedSegments(engine)}`,
    segments: sql`from p
      cross join ${engine.sql.table('trajectories')} as o
      cross join ${engine.sql.table('segments')} as s
      where o.tree = p.tree and o.key = p.key and o.namespace = ${namespace}
        and s.tree = p.tree and s.trajectory = p.key and s.first_step_number >= p.first and s.first_step_number < p.hi
        and (s.first_step_number <= ${from}
          or s.byte_sum + ${BODY_BYTES} <= ${bytesBefore(engine, tree, owner, from)} + ${maxBytes})`,
    attached: attachedIn(engine, namespace),
    withStates,
  });
}

/** A page of at most so many steps reads as many rows, and those of attached states, which are small. */
const FEW_STEPS = 8n;

/** Selects a page of one owner, as most are. */
function selectOwned(engine: Engine, page: PageQuery, { key, from: begin, to: end }: OwnedRange) {
  const { namespace, tree, owner, from, maxBytes, withStates } = page;
  const values = [namespace, tree, key, begin, end, owner ?? key, from, maxBytes] as const;
  const build = (...slots: typeof values): Compilable<StoredRow> => {
    const [inNamespace, inTree, ofKey, lo, hi, at, first, most] = slots;
    const kept = { namespace: inNamespace, tree: inTree, owner: at, from: first, maxBytes: most, withStates };
    return { compile: () => selectPage(engine, kept, [{ key: ofKey, from: lo, to: hi }]).compile(engine.db) };
  };
  return !withStates && end - begin <= FEW_STEPS
    ? engine.kept.byKey('page of steps', values, build)
    : engine.kept.of(`page of steps ${withStates}`, values, build);
}

/**
 * `p(tree, key, lo, hi, first)`: the ranges of `g`, each with the number at which its first segment begins, so
 * that a range of the index has the segments of each.
 */
export function searchedSegments(engine: Engine): RawBuilder<unknown> {
  const step = { tree: sql`g.tree`, trajectory: sql`g.key`, stepNumber: sql`g.lo` };
  return sql`p as materialized (select g.tree, g.key, g.lo, g.hi,
    coalesce(${columnOfSegment(engine, 'first_step_number', step)}, g.lo) as first from g)`;
}

/** The ranges of `searchedSegments`, to search the segments of. */
export function searchedPlace(engine: Engine): SearchedPlace {
  const owner = { tree: sql`p.tree`, key: sql`p.key` };
  const number = (alias: string) => sql.ref(`${alias}.first_step_number`);
  return {
    from: [sql`p`],
    of: (alias) => [isOwn(alias, owner), sql`${number(alias)} >= p.first and ${number(alias)} < p.hi`],
    owner,
    range: sql`p.lo, p.hi`,
    unindexed: indexedTo(engine, owner.tree, owner.key),
  };
}

/** Running byte sum before the segment that has a step; 0 if there is none. */
function bytesBefore(engine: Engine, tree: bigint, owner: bigint | undefined, from: bigint): RawBuilder<bigint> {
  if (owner === undefined) return sql`0`;
  return sql`coalesce(${columnOfSegment(engine, 'byte_sum', { tree, trajectory: owner, stepNumber: from })}, 0)`;
}

export interface Page {
  readonly rows: readonly PageSegment[];
  readonly from: bigint;
  readonly maxBytes: number;
  /** The page must end here, although the lineage continues. */
  readonly cutAt: bigint | undefined;
}

/** The current step of a page, and the segment that has it. */
interface FoundStep extends PageStep {
  readonly row: OwnedSegment;
}

/**
 * Calls `use` for the steps of a page in order, at least one if there is one, until a step is missing (RD1) or the page
 * is full. A page ends before a segment that it cannot have whole, because the next page would read that segment again.
 * A damaged segment fails only the page that begins with it, so that the steps before it can be read. `keepsNothing`:
 * `use` keeps no bytes of a step, so decompressed steps are freed at once, without a collection of the heap.
 */
function forEachStep(
  { rows, from, maxBytes, cutAt }: Page,
  use: (found: FoundStep) => void,
  keepsNothing = false,
): void {
  let next = from;
  let bytes = 0;
  for (const row of rows) {
    const { owner, segment, begin, end } = row;
    if (begin !== next) return;
    const isWhole = bytes + bytesOf(segment) <= maxBytes && (end !== cutAt || segment.next_step_number === end);
    if (next > from && !isWhole) return;
    let at: SegmentCursor | undefined;
    try {
      at = new SegmentCursor(segment);
      const found = { owner, at, row };
      while (next < end && at.next()) {
        if (at.stepNumber < begin) continue;
        bytes += at.frameBytes;
        if (next > from && bytes > maxBytes) return;
        use(found);
        next += 1n;
      }
    } catch (error) {
      if (error instanceof AnabranchError && next > from) return;
      throw error;
    } finally {
      if (keepsNothing) at?.free();
    }
  }
}
