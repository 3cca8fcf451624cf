import { stateDigest } from '../../../../domain/state_digest.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { StorageFault } from '../../../../domain/verification.ts';
import type { Engine, LockedHead } from '../../kit/engine.ts';
import { NO_SUMS, type Sums, sumsBefore } from '../../kit/running_sums.ts';
import { isSet, readDigest, readReal } from '../../kit/values.ts';
import { readHead } from '../../log/append/heads.ts';
import { indexNames } from '../../log/read/step_runs.ts';
import { confirmed } from './confirmed.ts';
import { type AttachedPart, type HeadPart, type Part, readPart, type SegmentPart } from './part.ts';
import { checkSegment, type FoundStep, isNear, type Report, unreadableColumns } from './segment.ts';

/** A trajectory to check, and what its parent says about it. */
export interface CheckedTrajectory extends TrajectoryRef {
  readonly id: string;
  /** Sum of rewards with which a branch begins. Undefined if the parent's step cannot be read. */
  readonly startRewardSum: number | undefined;
}

/** Checks the rows of a trajectory and of its steps. Also returns how many states are stored with these. */
export async function checkTrajectory(
  engine: Engine,
  checked: CheckedTrajectory,
): Promise<{ readonly faults: readonly StorageFault[]; readonly smallStates: bigint }> {
  let smallStates = 0n;
  const faults = await confirmed(async () => {
    const check = new TrajectoryCheck(engine, checked);
    const found = await check.run();
    smallStates = BigInt(check.smallStates);
    return found;
  });
  return { faults, smallStates };
}

class TrajectoryCheck {
  /** States that are stored with the steps that were read. */
  smallStates = 0;
  readonly #engine: Engine;
  readonly #checked: CheckedTrajectory;
  readonly #faults: StorageFault[] = [];
  /** Sums before the next step, as far as they are known. */
  #sums: Sums | undefined;
  /** Own sums are not known if segments were merged between two parts, or are damaged. */
  #isComplete = true;
  #rewardScale = 0;

  constructor(engine: Engine, checked: CheckedTrajectory) {
    this.#engine = engine;
    this.#checked = checked;
  }

  async run(): Promise<readonly StorageFault[]> {
    for (let at: bigint | undefined; ; ) {
      const part = await readPart(this.#engine, this.#checked, at);
      if (part.head === undefined) return [];
      const head = readHead(part.head);
      if (at === undefined) this.#sums = this.#startOf(head, part.segments[0]);
      this.#checkPart(head, part, at);
      if (part.isLast) {
        this.#checkEnd(part.head, head, part.segments.at(-1)?.next_step_number ?? at ?? head.ownBegin);
        return this.#faults;
      }
      at = part.segments.at(-1)!.next_step_number;
    }
  }

  /** The bytes of inherited steps are those of when the branch was created, so they are taken as they are. */
  #startOf({ ownBegin, sums }: LockedHead, first: SegmentPart | undefined): Sums {
    if (ownBegin === 0n) return NO_SUMS;
    const rewardSum = this.#checked.startRewardSum ?? readReal(first?.reward_sum ?? sums.rewardSum);
    return { ...NO_SUMS, rewardSum, byteSum: first?.byte_sum ?? sums.byteSum };
  }

  #checkPart(head: LockedHead, part: Part, at: bigint | undefined): void {
    const attached = Map.groupBy(part.attached, ({ step_number }) => step_number);
    const names = new Map([...attached].map(([number, states]) => [number, keptNames(states)]));
    const steps: FoundStep[] = [];
    let unread = false;
    const unreadable = new Set<SegmentPart>();
    for (const row of part.segments) {
      const report = this.#reportOf(head, row);
      const expected = row.previous_end ?? head.ownBegin;
      if (row.first_step_number !== expected) report('TILING', `${segmentName(row)} follows step ${expected - 1n}`);
      if (row.writer_epoch > head.writerEpoch) report('COLUMNS', 'the epoch is later than the one of the trajectory');
      // A merge since the last part has joined this segment with an earlier one.
      if (at !== undefined && row.first_step_number < at) this.#sums = undefined;
      if (this.#sums === undefined) this.#isComplete = false;
      const columns = unreadableColumns(row);
      for (const name of columns) report('COLUMNS', `the column ${name} cannot be read`);
      if (columns.length > 0) {
        unreadable.add(row);
        this.#sums = undefined;
        unread = true;
        continue;
      }
      const found = checkSegment(row, this.#sums ?? sumsBefore(row), names, report);
      this.#sums = found?.sums;
      if (found === undefined) {
        unread = true;
        continue;
      }
      for (const reward of JSON.parse(row.rewards) as unknown[]) this.#rewardScale += Math.abs(Number(reward)) || 0;
      steps.push(...found.steps);
      this.smallStates += found.smallStates;
    }
    this.smallStates += part.attached.filter(({ data, pruned_time }) => data !== null && pruned_time === null).length;
    this.#checkNamespaces(head, part);
    this.#checkAttached(head, part.attached);
    this.#checkNames(head, part, unreadable);
    if (!unread) this.#checkRows(head, part, steps);
  }

  #checkNamespaces(head: LockedHead, { segments, refs, attached, scores }: Part): void {
    for (const { namespace, step_number: step } of [...refs, ...attached, ...scores]) {
      if (namespace !== head.namespace) {
        this.#report(head, step, step + 1n)('ROWS', `a row of step ${step} is of namespace "${namespace}"`);
      }
    }
    for (const row of segments) {
      if (row.namespace !== head.namespace) {
        this.#reportOf(head, row)('ROWS', `${segmentName(row)} is of namespace "${row.namespace}"`);
      }
    }
  }

  #checkAttached(head: LockedHead, attached: readonly AttachedPart[]): void {
    for (const { step_number, name, digest, size, data } of attached) {
      if (data === null) continue;
      const named = readDigest(digest);
      if (BigInt(data.length) === size && stateDigest(data) === named) continue;
      this.#report(head, step_number, step_number + 1n)(
        'STATES',
        `the bytes of the attached state "${name}" do not match its digest`,
        named,
      );
    }
  }

  /** Compares the index of names with the segments, which have them too. */
  #checkNames(head: LockedHead, { head: row, segments, names }: Part, unreadable: ReadonlySet<SegmentPart>): void {
    const found = Map.groupBy(names, ({ first_step_number: first }) => first);
    for (const segment of segments) {
      const first = segment.first_step_number;
      const isIndexed = segment.body_bytes !== null;
      const report = this.#reportOf(head, segment);
      if (!isIndexed && first < row!.indexed_to)
        report('COLUMNS', `${segmentName(segment)} is not in the index of names`);
      const indexed = (found.get(first) ?? []).map(({ name }) => name).sort();
      found.delete(first);
      if (unreadable.has(segment)) continue; // Reported already.
      const expected = isIndexed ? [...indexNames(segment)].sort() : [];
      if (JSON.stringify(indexed) !== JSON.stringify(expected)) {
        report('COLUMNS', `the index of names has other names than ${segmentName(segment)}`);
      }
    }
    for (const first of found.keys()) {
      this.#report(
        head,
        first,
        first + 1n,
      )('COLUMNS', `the index of names has a segment at step ${first} that does not exist`);
    }
  }

  /** Compares the steps with the rows of other tables. */
  #checkRows(head: LockedHead, part: Part, steps: readonly FoundStep[]): void {
    const expected = new Map<string, bigint>();
    for (const { stepNumber, states } of steps) {
      for (const state of states) expected.set(refName(state.name, state.digest, stepNumber, state.size), stepNumber);
    }
    for (const { step_number, name, digest, size, data, pruned_time } of part.attached) {
      if (data === null && pruned_time === null)
        expected.set(refName(name, readDigest(digest), step_number, Number(size)), step_number);
    }
    for (const ref of part.refs) {
      const report = this.#report(head, ref.step_number, ref.step_number + 1n);
      if (ref.digest === null) {
        report('REFERENCES', `the state "${ref.name}" of step ${ref.step_number} refers to a row that does not exist`);
        continue;
      }
      const digest = readDigest(ref.digest);
      if (ref.state_namespace !== head.namespace) {
        report('REFERENCES', `step ${ref.step_number} refers to a state of another namespace`, digest);
      }
      if (isSet(ref.collected ?? 0n)) report('REFERENCES', `step ${ref.step_number} refers to a deleted state`, digest);
      const size = ref.name === '' ? undefined : Number(ref.size);
      if (!expected.delete(refName(ref.name, digest, ref.step_number, size))) {
        report('REFERENCES', `step ${ref.step_number} does not have the state "${ref.name}" of a reference`, digest);
      }
    }
    for (const [ref, step] of expected) {
      this.#report(head, step, step + 1n)('REFERENCES', `a reference of step ${step} is missing: ${ref}`);
    }
    this.#checkScores(head, part, steps);
  }

  #checkScores(head: LockedHead, { scores }: Part, steps: readonly FoundStep[]): void {
    const expected = new Map<string, number>();
    for (const { stepNumber, metrics } of steps) {
      for (const metric of head.scoredMetrics) {
        const value = metrics.get(metric);
        if (value !== undefined && !Number.isNaN(value)) expected.set(JSON.stringify([`${stepNumber}`, metric]), value);
      }
    }
    for (const { step_number, metric, value } of scores) {
      const name = JSON.stringify([`${step_number}`, metric]);
      if (expected.get(name) !== readReal(value)) {
        const report = this.#report(head, step_number, step_number + 1n);
        report('COLUMNS', `the score "${metric}" of step ${step_number} differs from its metric`);
      }
      expected.delete(name);
    }
    for (const name of expected.keys()) this.#report(head)('COLUMNS', `the score ${name} is missing`);
  }

  #checkEnd(row: HeadPart, head: LockedHead, end: bigint): void {
    const report = this.#report(head);
    if (head.nextStepNumber !== end) {
      const [first, next] = end < head.nextStepNumber ? [end, head.nextStepNumber] : [head.nextStepNumber, end];
      this.#report(
        head,
        first,
        next,
      )('TILING', `it ends at step ${head.nextStepNumber}, and its segments end at ${end}`);
      return;
    }
    const sums = this.#sums;
    // The sums of a trajectory that is being deleted are no longer kept.
    if (sums === undefined || isSet(row.purging) || isSet(row.trimming)) return;
    if (!same(sums.rewardSum, head.sums.rewardSum)) report('SUMS', 'its sum of rewards differs from its steps');
    // The end of a trimmed trajectory counts the marks of pruned states too.
    if (sums.byteSum !== head.sums.byteSum && !head.hidden) report('SUMS', 'its sum of bytes differs from its steps');
    if (this.#isComplete && !head.hidden) this.#checkOwnSums(head, sums, report);
  }

  #checkOwnSums(head: LockedHead, sums: Sums, report: Report): void {
    const [own, other] = [sums.branchRewardSum, head.sums.branchRewardSum];
    if (own === undefined || other === undefined ? own !== other : !isNear(own, other, this.#rewardScale)) {
      report('SUMS', 'the sum of its own rewards differs from its steps');
    }
    for (const [bound, found, stored] of [
      ['smallest', sums.minReward, head.sums.minReward],
      ['largest', sums.maxReward, head.sums.maxReward],
    ] as const) {
      if (found !== stored) report('SUMS', `its ${bound} reward differs from its steps`);
    }
    const { timedTurns, turnSeconds } = head.sums;
    if (sums.timedTurns !== timedTurns || !isNear(sums.turnSeconds, turnSeconds, sums.turnSeconds)) {
      report('SUMS', 'the duration of its turns differs from its steps');
    }
  }

  #reportOf(head: LockedHead, row: SegmentPart): Report {
    return this.#report(head, row.first_step_number, row.next_step_number);
  }

  #report({ namespace }: LockedHead, first?: bigint, next?: bigint): Report {
    const { id } = this.#checked;
    const steps = first === undefined || next === undefined ? {} : { firstStepNumber: first, nextStepNumber: next };
    const place =
      first === undefined ? '' : next === first + 1n ? `, step ${first}` : `, steps ${first} to ${next! - 1n}`;
    return (check, message, digest) => {
      const named = digest === undefined ? {} : { digest };
      const fault = { check, namespace, trajectoryId: id, ...steps, ...named };
      this.#faults.push({ ...fault, message: `trajectory ${id}${place}: ${message}` });
    };
  }
}

/** Names of the attached states that can be read. */
function keptNames(attached: readonly AttachedPart[]): string[] {
  return attached.filter(({ pruned_time }) => pruned_time === null).map(({ name }) => name);
}

function same(a: number, b: number): boolean {
  return a === b || Object.is(a, b);
}

function segmentName({ first_step_number: first, next_step_number: next }: SegmentPart): string {
  return `the segment of steps ${first} to ${next - 1n}`;
}

/** The size of the state of a content is not in the reference. */
function refName(name: string, digest: string, step: bigint, size: number | undefined): string {
  return JSON.stringify([`${step}`, name, digest, ...(size === undefined ? [] : [size])]);
}
