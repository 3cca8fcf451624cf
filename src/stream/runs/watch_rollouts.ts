import type { Group, Rollout } from '../../domain/rollout.ts';
import type { Page } from '../../store/contract/request.ts';
import type { ChangeCursor, ChangedIn } from '../../store/contract/run.ts';
import type { Store } from '../../store/contract/store.ts';
import { rowParts } from '../row_bytes.ts';

/** Rows read by one statement. */
const ROWS = 256;
/** Maximum number of rows of the last look that are remembered. Other rows that are found again are sent again. */
const REMEMBERED = 10_000;

/** Groups and rollouts of one message; less than 1 MiB. */
interface ChangedRows {
  readonly groups: readonly Group[];
  readonly rollouts: readonly Rollout[];
}

/** Reads the changed groups of a run, then its changed rollouts with their groups, page by page. */
export async function* readChangedRows(
  store: Store,
  namespace: string,
  run: bigint,
  where: ChangedIn,
): AsyncGenerator<ChangedRows, void, undefined> {
  for await (const { rows } of pages((page) => store.readChangedGroups(namespace, run, where, page))) {
    yield* ofGroups(rows);
  }
  for await (const { rows, groups } of pages((page) => store.readChangedRollouts(namespace, run, where, page))) {
    yield* ofGroups(groups);
    for (const rollouts of rowParts(rows)) yield { groups: [], rollouts };
  }
  yield* readLive(store, namespace, run, where);
}

/** Reads live rollouts, whose turns and rewards change without a change of their rows. A snapshot includes them. */
async function* readLive(
  store: Store,
  namespace: string,
  run: bigint,
  { since }: ChangedIn,
): AsyncGenerator<ChangedRows, void, undefined> {
  if (since === undefined) return;
  for (let after: bigint | undefined; ; ) {
    const rows = await store.readLiveRollouts(namespace, run, { limit: ROWS, after });
    for (const rollouts of rowParts(rows)) yield { groups: [], rollouts };
    if (rows.length < ROWS) return;
    after = rows.at(-1)?.key;
  }
}

function* ofGroups(all: readonly Group[]): Generator<ChangedRows> {
  for (const groups of rowParts(all)) yield { groups, rollouts: [] };
}

async function* pages<Found extends { readonly next: ChangeCursor | undefined }>(
  read: (page: Page<ChangeCursor>) => Promise<Found>,
): AsyncGenerator<Found, void, undefined> {
  let after: ChangeCursor | undefined;
  do {
    const found = await read({ limit: ROWS, after });
    yield found;
    after = found.next;
  } while (after !== undefined);
}

/**
 * What the watcher has received about groups and rollouts. A look repeats only rows that the previous look returned. It
 * returns a group for its own change, and with each page of its rollouts.
 */
export class KnownRows {
  #last: ReadonlyMap<string, string> = new Map();

  async *news(read: AsyncIterable<ChangedRows> | Iterable<ChangedRows>): AsyncGenerator<ChangedRows, void, undefined> {
    const now = new Map<string, string>();
    const isNew = (name: string, version: string): boolean => {
      const sent = now.get(name) ?? this.#last.get(name);
      if (now.size < REMEMBERED) now.set(name, version);
      return sent !== version;
    };
    for await (const some of read) {
      const groups = some.groups.filter((group) => isNew(`g${group.key}`, groupVersion(group)));
      const rollouts = some.rollouts.filter((rollout) => isNew(`r${rollout.key}`, rolloutVersion(rollout)));
      if (groups.length + rollouts.length > 0) yield { groups, rollouts };
    }
    this.#last = now;
  }
}

/** A rollout changes with its row and, while it is live, with its trajectory. The end of its lease is no change. */
function rolloutVersion({ revision, turns, reward }: Rollout): string {
  return `${revision} ${turns} ${reward}`;
}

/** A group changes with its rollouts. Includes statistics, which can change without the group's row. */
function groupVersion({ revision, statistics }: Group): string {
  const { pending, live, completed, failed, cancelled, judged, successes, rewards, best } = statistics;
  const counts = [revision, pending, live, completed, failed, cancelled, judged, successes, rewards.count];
  return [...counts, rewards.mean, best?.rolloutId].join(' ');
}
