import { parseInstant } from '../../../../domain/instant.ts';
import type { Commit } from '../../../../domain/step_codec/write.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';

/** The columns that hold the commits of a segment. */
export type StoredCommits = Pick<SegmentRow, 'writer_epoch' | 'commit_time' | 'commits' | 'last_commit_time'>;

/** Columns that the commits of the steps are read from. */
type CommitsOfSteps = Omit<StoredCommits, 'last_commit_time'> &
  Pick<SegmentRow, 'first_step_number' | 'next_step_number'>;

/** Consecutive steps of one commit, from the step with this index in the segment on. */
export type CommitRun = readonly [index: number, epoch: number, time: string];

/** What `commits` holds: the commits in order of step, and of each step the index of its commit. */
type CommitLists = readonly [commits: (readonly [epoch: number, time: string])[], ofSteps: number[]];

/** Returns the commits of a segment in order of step. Throws an error if `commits` is damaged. */
export function commitRuns(row: CommitsOfSteps): CommitRun[] {
  const { commits, writer_epoch, commit_time } = row;
  if (commits === null) return [[0, Number(writer_epoch), commit_time]];
  const [all, ofSteps] = JSON.parse(commits) as CommitLists;
  const runs: CommitRun[] = [];
  // Callers allocate as much as the indexes of runs say, so these are counted here, and not read.
  for (const [index, i] of ofSteps.entries()) {
    if (index > 0 && i === runs.length - 1) continue;
    const [epoch, time] = all[runs.length]!;
    const isKnown = i === runs.length && Number.isSafeInteger(epoch) && typeof time === 'string';
    if (!isKnown) throw new Error(`the commit of step ${index} is damaged`);
    runs.push([index, epoch, time]);
  }
  const count = Number(row.next_step_number - row.first_step_number);
  if (ofSteps.length !== count || runs.length !== all.length) throw new Error('the commits are not those of the steps');
  return runs;
}

/** Returns the columns for commits of `count` steps in order of step. Neighbours with equal values become one. */
export function commitColumns(runs: readonly CommitRun[], count: number): StoredCommits {
  const kept: CommitRun[] = [];
  for (const run of runs) {
    const last = kept.at(-1);
    if (last === undefined || last[1] !== run[1] || last[2] !== run[2]) kept.push(run);
  }
  // Times are ISO text with six digits. A clock may have been set back, so they need not be in order.
  const times = kept.map(([, , time]) => time).sort();
  const [earliest, latest] = [times[0]!, times.at(-1)!];
  return {
    writer_epoch: BigInt(kept[0]![1]),
    commit_time: earliest,
    commits: kept.length === 1 ? null : JSON.stringify(listsOf(kept, count)),
    last_commit_time: latest === earliest ? null : latest,
  };
}

function listsOf(runs: readonly CommitRun[], count: number): CommitLists {
  const ofSteps = runs.flatMap(([from], i) => Array<number>((runs[i + 1]?.[0] ?? count) - from).fill(i));
  return [runs.map(([, epoch, time]) => [epoch, time]), ofSteps];
}

/** Finds the commit of each step of a segment. Parsing a time costs as much as a small step, so each is parsed once. */
export class Commits {
  readonly #runs: readonly { readonly from: bigint; readonly commit: Commit }[];

  constructor(row: CommitsOfSteps) {
    this.#runs = commitRuns(row).map(([index, epoch, time]) => ({
      from: row.first_step_number + BigInt(index),
      commit: { writerEpoch: BigInt(epoch), commitTime: parseInstant(time) },
    }));
  }

  of(stepNumber: bigint): Commit {
    let [low, high] = [0, this.#runs.length - 1];
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.#runs[middle]!.from <= stepNumber) low = middle;
      else high = middle - 1;
    }
    return this.#runs[low]!.commit;
  }
}
