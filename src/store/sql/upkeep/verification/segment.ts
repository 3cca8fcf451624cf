import { AnabranchError } from '../../../../domain/errors.ts';
import type { Digest } from '../../../../domain/ids.ts';
import { stateDigest } from '../../../../domain/state_digest.ts';
import { contentStates, isKept, type StateRef, type Step } from '../../../../domain/step.ts';
import { SmallStates } from '../../../../domain/step_codec/small_states.ts';
import type { StorageCheck } from '../../../../domain/verification.ts';
import { rewardsOf, type Sums } from '../../kit/running_sums.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import { readOptionalReal, readReal } from '../../kit/values.ts';
import type { MetricSum } from '../../log/append/metric_sums.ts';
import { SegmentBuilder } from '../../log/append/segment_builder.ts';
import { commitColumns, commitRuns, type StoredCommits } from '../../log/read/commits.ts';
import { SegmentCursor } from '../../log/read/segment.ts';
import { readRuns } from '../../log/read/step_runs.ts';
import { bytesOf, readStates } from '../../log/read/stored_body.ts';

export type Report = (check: StorageCheck, message: string, digest?: Digest) => void;

/** A step as far as rows of other tables have to agree with it. */
export interface FoundStep {
  readonly stepNumber: bigint;
  /** Digests and sizes of the states that have rows of their own, by name. Those of contents have no name. */
  readonly states: readonly { readonly name: string; readonly digest: Digest; readonly size: number | undefined }[];
  readonly metrics: Step['metrics'];
}

export interface FoundSteps {
  readonly steps: readonly FoundStep[];
  /** States that are stored with the steps. */
  readonly smallStates: number;
  /** Sums after the last step. */
  readonly sums: Sums;
}

/** How the columns of a segment that hold JSON are read. */
const JSON_COLUMNS: readonly (readonly [name: string, read: (row: SegmentRow) => unknown])[] = [
  ['commits', commitRuns],
  ['rewards', ({ rewards }) => rewardsOf(rewards)],
  ['ends', ({ ends }) => JSON.parse(ends)],
  ['metric_sums', ({ metric_sums }) => JSON.parse(metric_sums)],
  ['state_names', ({ state_names }) => readRuns(state_names)],
  ['labels', ({ labels }) => readRuns(labels)],
];

/** Returns the columns of a segment that are so damaged that they cannot be compared with the steps. */
export function unreadableColumns(row: SegmentRow): string[] {
  return JSON_COLUMNS.filter(([, read]) => !isReadable(() => read(row))).map(([name]) => name);
}

function isReadable(read: () => unknown): boolean {
  try {
    return typeof read() === 'object';
  } catch {
    return false;
  }
}

/**
 * Decodes all steps of a segment and builds the segment again: reports each column that differs. `attached` has the
 * names of attached states by step number. Returns undefined if the steps cannot be read.
 */
export function checkSegment(
  row: SegmentRow,
  before: Sums,
  attached: ReadonlyMap<bigint, readonly string[]>,
  report: Report,
): FoundSteps | undefined {
  const builder = new SegmentBuilder(
    { tree: row.tree, key: row.trajectory, namespace: row.namespace, writerEpoch: row.writer_epoch },
    before,
    row.first_step_number,
  );
  const found: FoundStep[] = [];
  let smallStates = 0;
  const states = readStates(row);
  try {
    const small = new SmallStates(states);
    let bytes = 0;
    for (const at = new SegmentCursor(row); at.next(); ) {
      bytes += at.frameBytes;
      const step = at.read('FULL');
      const withBytes = step.states.map((state) => withData(state, small, report));
      builder.add(
        { ...step, states: withBytes, contentStates: [], tensorStates: [], contentData: [], bytes: at.bytes },
        at.sentBytes,
      );
      found.push(foundStep(step, withBytes));
      smallStates += withBytes.filter(({ data }) => data !== undefined).length;
    }
    if (bytes !== bytesOf(row)) report('STEPS', `${bytesOf(row) - bytes} bytes follow the last step`);
    if (small.length !== states.length) report('STATES', 'the bytes of small states do not end with the last one');
  } catch (error) {
    if (!(error instanceof AnabranchError)) throw error;
    report('STEPS', error.message);
    return undefined;
  }
  compareColumns(row, builder.row(row.commit_time), attached, report);
  checkCommits(row, found.length, report);
  return { steps: found, smallStates, sums: builder.sums };
}

function withData(state: StateRef, small: SmallStates, report: Report): StateRef {
  const data = small.next(state.size);
  if (data === undefined) return state;
  if (!isKept(state)) report('STATES', `the pruned state "${state.name}" still has bytes`, state.digest);
  if (stateDigest(data) !== state.digest) {
    report('STATES', `the bytes of the small state "${state.name}" do not match its digest`, state.digest);
  }
  return { ...state, data };
}

function foundStep(step: Step, states: readonly StateRef[]): FoundStep {
  const rows = states
    .filter((state) => state.data === undefined && isKept(state))
    .map(({ name, digest, size }) => ({ name, digest, size }));
  const contents = contentStates(step).map((digest) => ({ name: '', digest, size: undefined }));
  return { stepNumber: step.stepNumber, states: [...rows, ...contents], metrics: step.metrics };
}

function compareColumns(
  row: SegmentRow,
  built: SegmentRow,
  attached: ReadonlyMap<bigint, readonly string[]>,
  report: Report,
): void {
  const differ = (name: string) => report('COLUMNS', `the column ${name} differs from the steps`);
  if (row.rewards !== built.rewards) differ('rewards');
  if (!sameEntries(row.ends, built.ends)) differ('ends');
  for (const bound of ['min_reward', 'max_reward'] as const) {
    if (readOptionalReal(row[bound]) !== readOptionalReal(built[bound])) differ(bound);
  }
  if (!sameSums(row, built)) differ('metric_sums');
  const names = [...runItems(built.state_names), ...attachedItems(row, attached)].sort();
  if (names.join('\n') !== runItems(row.state_names).sort().join('\n')) differ('state_names');
  if (runItems(built.labels).sort().join('\n') !== runItems(row.labels).sort().join('\n')) differ('labels');
  if (Buffer.compare(built.states, readStates(row)) !== 0) report('STATES', 'the bytes of small states are damaged');
  if (readReal(row.reward_sum) !== readReal(built.reward_sum) && !Number.isNaN(readReal(built.reward_sum))) {
    report('SUMS', `the sum of rewards before step ${row.first_step_number} is wrong`);
  }
  if (row.byte_sum !== built.byte_sum) report('SUMS', `the sum of bytes before step ${row.first_step_number} is wrong`);
}

function sameEntries(a: string, b: string): boolean {
  const sorted = (json: string) => JSON.stringify(Object.entries(JSON.parse(json)).sort());
  return a === b || sorted(a) === sorted(b);
}

/** Merged segments add values in another order. */
function sameSums(row: SegmentRow, built: SegmentRow): boolean {
  const [a, b] = [row, built].map((each) => new Map(Object.entries(JSON.parse(each.metric_sums)))) as [
    Map<string, MetricSum>,
    Map<string, MetricSum>,
  ];
  const count = Number(row.next_step_number - row.first_step_number);
  return (
    a.size === b.size &&
    [...a].every(([name, [total, least, most]]) => {
      const other = b.get(name);
      if (other === undefined || other[1] !== least || other[2] !== most) return false;
      if (total === null || other[0] === null) return total === other[0];
      return isNear(total, other[0], count * Math.max(Math.abs(least), Math.abs(most)));
    })
  );
}

/** Whether sums are equal but for rounding. `scale` is at least the sum of the absolute values. */
export function isNear(a: number, b: number, scale: number): boolean {
  return Object.is(a, b) || a === b || Math.abs(a - b) <= scale * 1e-9;
}

function runItems(json: string): string[] {
  return readRuns(json).flatMap(([name, from, to]) =>
    Array.from({ length: to - from }, (_, i) => JSON.stringify([name, from + i])),
  );
}

function attachedItems(
  { first_step_number: first, next_step_number: next }: SegmentRow,
  attached: ReadonlyMap<bigint, readonly string[]>,
): string[] {
  if (attached.size === 0) return [];
  const items: string[] = [];
  for (let number = first; number < next; number += 1n) {
    for (const name of attached.get(number) ?? []) items.push(JSON.stringify([name, Number(number - first)]));
  }
  return items;
}

function checkCommits(row: SegmentRow, count: number, report: Report): void {
  const runs = commitRuns(row);
  const isOrdered = runs.every(([, epoch], i) => i === 0 || epoch >= runs[i - 1]![1]);
  if (!isOrdered || !hasColumns(row, commitColumns(runs, count))) {
    report('COLUMNS', 'the commits of the steps are inconsistent');
  }
}

function hasColumns(row: SegmentRow, columns: StoredCommits): boolean {
  const names = Object.keys(columns) as (keyof StoredCommits)[];
  return names.every((name) => row[name] === columns[name]);
}
