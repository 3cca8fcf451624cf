import type { Caller } from '../../domain/caller.ts';
import type { Group, Rollout } from '../../domain/rollout.ts';
import type { ChangedIn } from '../../store/contract/run.ts';
import type { App } from '../app.ts';
import { groupBytes, rolloutBytes } from '../rollout/row_bytes.ts';

/** Rows read by one statement. */
const ROWS = 256;
/** Of one message. */
const ROWS_BYTES = 512 * 1024;
/** Rows of the last look that are remembered, so that they are not told again. More than these are merely told once more. */
const REMEMBERED = 10_000;

/** Groups and rollouts that are told together; below 1 MiB. */
export interface Siblings {
  readonly groups: readonly Group[];
  readonly rollouts: readonly Rollout[];
}

/** What changed of a run's groups, then of its rollouts, page by page: a snapshot may be large. */
export async function* readSiblings(
  { store }: App,
  { namespace }: Caller,
  run: bigint,
  where: ChangedIn,
): AsyncGenerator<Siblings, void, undefined> {
  for await (const groups of pages((page) => store.readChangedGroups(namespace, run, where, page), groupBytes)) {
    yield { groups, rollouts: [] };
  }
  for await (const rollouts of pages((page) => store.readChangedRollouts(namespace, run, where, page), rolloutBytes)) {
    yield { groups: [], rollouts };
  }
}

async function* pages<Row extends { readonly key: bigint }>(
  fetch: (page: { readonly limit: number; readonly after: bigint | undefined }) => Promise<Row[]>,
  bytesOf: (row: Row, view: 'BASIC') => number,
): AsyncGenerator<Row[], void, undefined> {
  let after: bigint | undefined;
  for (;;) {
    const rows = await fetch({ limit: ROWS, after });
    let some: Row[] = [];
    let bytes = 0;
    for (const row of rows) {
      const size = bytesOf(row, 'BASIC');
      if (some.length > 0 && bytes + size > ROWS_BYTES) {
        yield some;
        [some, bytes] = [[], 0];
      }
      some.push(row);
      bytes += size;
    }
    if (some.length > 0) yield some;
    after = rows.at(-1)?.key;
    if (rows.length < ROWS) return;
  }
}

/**
 * What the watcher has been told of groups and rollouts. As with stages it is enough to know the last look: what is found again, from a horizon that only
 * rises, the look before has found too.
 */
export class SiblingsShown {
  private last: ReadonlyMap<string, string> = new Map();

  async *news(read: AsyncIterable<Siblings>): AsyncGenerator<Siblings, void, undefined> {
    const now = new Map<string, string>();
    const isNew = (name: string, sign: string): boolean => {
      if (now.size < REMEMBERED) now.set(name, sign);
      return this.last.get(name) !== sign;
    };
    for await (const some of read) {
      const groups = some.groups.filter((group) => isNew(`g${group.key}`, groupSign(group)));
      const rollouts = some.rollouts.filter(({ key, revision }) => isNew(`r${key}`, `${revision}`));
      if (groups.length + rollouts.length > 0) yield { groups, rollouts };
    }
    this.last = now;
  }
}

/** A group changes with its rollouts, its own revision only where they end. */
function groupSign({ revision, statistics }: Group): string {
  const { pending, live, completed, failed, cancelled, judged, successes, rewards, best } = statistics;
  const counts = [revision, pending, live, completed, failed, cancelled, judged, successes, rewards.count];
  return [...counts, rewards.mean, best?.rolloutId].join(' ');
}
