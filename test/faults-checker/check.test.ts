import { describe, expect, it } from 'vitest';
import { checkHistory, type Rule, unknownButStored } from '../faults/history/check.ts';
import type { Append, Outcome, Recorded, SeenStep } from '../faults/history/history.ts';
import type { Stored, StoredTrajectory } from '../faults/history/stored.ts';

/**
 * A short history that kept every promise: two writers on a trunk, a branch of it, a reader and a follower. Each test
 * changes one thing.
 */
interface Story {
  history: { -readonly [K in keyof Recorded]: Writable<Recorded[K][number]>[] };
  stored: Map<string, { -readonly [K in keyof StoredTrajectory]: WritableList<StoredTrajectory[K]> }>;
}
type Writable<T> = { -readonly [K in keyof T]: WritableList<T[K]> };
type WritableList<T> = T extends readonly (infer E)[] ? Writable<E>[] : T;

function story(): Story {
  const content = (writer: string, number: number) => `${writer} ${number}`;
  const append = (writer: string, number: number, begin: number, outcome: Outcome): Append => ({
    trajectory: 'trunk',
    writer,
    number: BigInt(number),
    content: content(writer, number),
    begin,
    outcome,
    end: begin + 1,
  });
  const seen = (writer: string, number: number): SeenStep => ({
    number: BigInt(number),
    content: content(writer, number),
  });
  const row = (writer: string, number: number, epoch: number) => ({ ...seen(writer, number), epoch: BigInt(epoch) });
  const read = (writer: string, number: number, epoch: number, owner = 'trunk') => ({
    ...row(writer, number, epoch),
    owner,
    digest: number === 0 ? 'the hash of a state' : undefined,
  });
  const trunk = [read('a', 0, 1), read('a', 1, 1), read('b', 2, 2), read('b', 3, 2)];
  return {
    history: {
      grants: [
        { trajectory: 'trunk', writer: 'a', epoch: 1n, next: 0n, tick: 1 },
        { trajectory: 'trunk', writer: 'b', epoch: 2n, next: 2n, tick: 10 },
        { trajectory: 'branch', writer: 'c', epoch: 1n, next: 2n, tick: 30 },
      ],
      appends: [
        append('a', 0, 2, 'acked'),
        append('a', 1, 4, 'unknown'),
        append('a', 2, 6, 'refused'),
        append('b', 2, 12, 'acked'),
        append('b', 3, 14, 'acked'),
        { ...append('c', 2, 32, 'acked'), trajectory: 'branch' },
      ],
      reads: [
        {
          reader: 'reader',
          trajectory: 'trunk',
          from: 1n,
          begin: 20,
          end: 21,
          got: trunk.slice(1).map(({ number, content: made }) => ({ number, content: made })),
        },
      ],
      follows: [
        {
          follower: 'follower',
          trajectory: 'trunk',
          from: 0n,
          got: trunk.map(({ number, content: made }) => ({ number, content: made, tick: 40 })),
          marks: [
            { next: 2n, delivered: 2 },
            { next: 4n, delivered: 4 },
          ],
          stayed: true,
        },
      ],
      branchings: [{ branch: 'branch', parent: 'trunk', point: 1n, outcome: 'acked' }],
      sealings: [{ trajectory: 'branch', outcome: 'acked' }],
    },
    stored: new Map([
      [
        'trunk',
        {
          id: 'trunk',
          parent: undefined,
          branchPoint: undefined,
          end: 4n,
          sealed: false,
          rows: [row('a', 0, 1), row('a', 1, 1), row('b', 2, 2), row('b', 3, 2)],
          read: trunk.map((step) => ({ ...step })),
          states: new Map([[0n, 'the hash of a state']]),
        },
      ],
      [
        'branch',
        {
          id: 'branch',
          parent: 'trunk',
          branchPoint: 1n,
          end: 3n,
          sealed: true,
          rows: [row('c', 2, 1)],
          read: [read('a', 0, 1), read('a', 1, 1), read('c', 2, 1, 'branch')],
          states: new Map([[0n, 'the hash of a state']]),
        },
      ],
    ]),
  };
}

type Trajectory = Story['stored'] extends Map<string, infer T> ? T : never;

function rulesBroken({ history, stored }: Story): Rule[] {
  return [...new Set(checkHistory(history as Recorded, stored as Stored).map(({ rule }) => rule))].sort();
}

/** The rules that are violated after `spoil` changed the history. */
function broken(spoil: (story: Story & { trunk: Trajectory; branch: Trajectory }) => void): Rule[] {
  const history = story();
  spoil({ ...history, trunk: history.stored.get('trunk')!, branch: history.stored.get('branch')! });
  return rulesBroken(history);
}

/** The same change to the tables and to the answers of the API. */
function both(trajectory: Trajectory, change: (steps: Trajectory['rows'] | Trajectory['read']) => void): void {
  change(trajectory.rows);
  change(trajectory.read);
}

describe('the history checker', () => {
  it('finds nothing in a history that kept every promise', () => {
    expect(rulesBroken(story())).toEqual([]);
  });

  it('counts steps stored without an ack', () => {
    const { history, stored } = story();
    expect(unknownButStored(history as Recorded, stored as Stored)).toBe(1);
  });

  it('C1: detects an acked step that is missing', () => {
    const rules = broken(({ trunk, history }) => {
      both(trunk, (steps) => void steps.pop());
      trunk.end = 3n;
      history.reads = [];
      history.follows = [];
    });
    expect(rules).toEqual(['C1']);
  });

  it('C1: detects an acked step that was replaced by another one', () => {
    expect(broken(({ trunk }) => both(trunk, (steps) => (steps[3]!.content = 'a 1')))).toContain('C1');
  });

  it('C1: detects an acked step that is stored twice', () => {
    const rules = broken(({ trunk }) => {
      trunk.rows.push({ number: 4n, content: 'b 3', epoch: 2n });
      trunk.read.push({ number: 4n, content: 'b 3', epoch: 2n, owner: 'trunk', digest: undefined });
      trunk.end = 5n;
    });
    expect(rules).toContain('C1');
  });

  it('C1: detects an acked branch that is missing or starts elsewhere, and an acked seal that is missing', () => {
    expect(
      broken(({ stored, history }) => {
        stored.delete('branch');
        history.appends.pop();
        history.sealings = [];
      }),
    ).toEqual(['C1']);
    expect(broken(({ history }) => (history.branchings[0]!.point = 0n))).toEqual(['C1']);
    expect(broken(({ branch }) => (branch.sealed = false))).toEqual(['C1']);
  });

  it('C2: detects a gap, a duplicate number, and an end that does not match the steps', () => {
    expect(broken(({ trunk }) => trunk.rows.splice(1, 1))).toContain('C2');
    expect(broken(({ trunk }) => trunk.read.splice(1, 1))).toContain('C2');
    expect(broken(({ trunk }) => both(trunk, (steps) => (steps[2]!.number = 1n)))).toContain('C2');
    expect(broken(({ trunk }) => (trunk.end = 5n))).toContain('C2');
  });

  it('C3: detects a step that nobody sent, that was sent for another place, or that was refused', () => {
    expect(broken(({ history }) => history.appends.splice(1, 1))).toEqual(['C3']);
    expect(broken(({ history }) => (history.appends[1]!.trajectory = 'branch'))).toEqual(['C3']);
    expect(broken(({ history }) => (history.appends[1]!.outcome = 'refused'))).toEqual(['C3']);
  });

  it('C4: detects an older epoch after a newer one', () => {
    expect(broken(({ trunk }) => both(trunk, (steps) => (steps[3]!.epoch = 1n)))).toEqual(['C4']);
  });

  it('C4: detects a step after a newer grant, or before the grant it was written under', () => {
    expect(broken(({ history }) => (history.grants[1]!.next = 1n))).toEqual(['C4']);
    expect(broken(({ history }) => (history.grants[1]!.next = 3n))).toEqual(['C4']);
  });

  it('C4: detects an epoch that its writer was not granted, and one that was granted twice', () => {
    expect(broken(({ history }) => (history.grants[1]!.writer = 'd'))).toEqual(['C4']);
    expect(broken(({ history }) => history.grants.push({ ...history.grants[1]!, writer: 'b' }))).toEqual(['C4']);
  });

  it('C4: detects a step of a fenced writer that started after the newer grant, even with nothing after it', () => {
    const rules = broken(({ history }) => {
      history.grants.push({ trajectory: 'trunk', writer: 'd', epoch: 3n, next: 4n, tick: 13 });
    });
    expect(rules).toEqual(['C4']);
  });

  it('C5: detects a read without steps that were acked before it', () => {
    expect(broken(({ history }) => history.reads[0]!.got.pop())).toEqual(['C5']);
  });

  it('C5: detects a read with a gap, with steps that are not stored, or with steps from the future', () => {
    expect(broken(({ history }) => history.reads[0]!.got.splice(0, 1))).toEqual(['C5']);
    expect(broken(({ history }) => (history.reads[0]!.got[1]!.content = 'a 2'))).toEqual(['C5']);
    expect(broken(({ history }) => (history.appends[4]!.begin = 25))).toEqual(['C5']);
  });

  it('C6: detects a follower that gets a step twice, late, never, or with other content', () => {
    const follow = ({ history }: Story) => history.follows[0]!;
    expect(broken((history) => follow(history).got.splice(1, 0, follow(history).got[1]!))).toEqual(['C6']);
    expect(broken((history) => follow(history).got.reverse())).toEqual(['C6']);
    expect(broken((history) => follow(history).got.pop())).toEqual(['C6']);
    expect(broken((history) => (follow(history).got[2]!.content = 'a 2'))).toEqual(['C6']);
    expect(broken((history) => (follow(history).got[2]!.tick = 3))).toEqual(['C6']);
  });

  it('C6: detects a marker that does not match what was delivered', () => {
    expect(broken(({ history }) => (history.follows[0]!.marks[0]!.next = 3n))).toEqual(['C6']);
  });

  it('C7: detects a branch whose prefix is not that of its parent', () => {
    expect(broken(({ branch }) => (branch.read[1]!.content = 'a 0'))).toEqual(['C7']);
    expect(broken(({ branch }) => (branch.read[1]!.owner = 'elsewhere'))).toEqual(['C7']);
  });

  it('C8: detects an API answer that differs from the tables', () => {
    expect(broken(({ trunk }) => (trunk.rows[1]!.epoch = 0n))).toContain('C8');
    expect(broken(({ branch }) => (branch.read[2]!.content = 'a 1'))).toEqual(['C8']);
    expect(broken(({ branch }) => (branch.read[2]!.owner = 'trunk'))).toContain('C8');
  });

  it('C8: detects a checkpoint whose state is missing, or has other bytes', () => {
    expect(broken(({ branch }) => (branch.states = new Map()))).toEqual(['C8']);
    expect(broken(({ trunk }) => (trunk.states = new Map([[0n, 'another hash']])))).toEqual(['C8']);
  });
});
