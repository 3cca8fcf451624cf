import type { Caller } from '../../domain/caller.ts';
import type { Group, Rollout } from '../../domain/rollout.ts';
import type { Page } from '../../store/contract/page.ts';
import type { ChangeCursor, ChangedIn } from '../../store/contract/run.ts';
import type { App } from '../app.ts';
import { rowParts } from '../row_bytes.ts';

/** Rows read by one statement. */
const ROWS = 256;
/**
 * Rows of the last look that are remembered, so that they are not told again. More than these are merely told once
 * more.
 */
const REMEMBERED = 10_000;

/** Groups and rollouts that are told together; below 1 MiB. */
export interface Siblings {
  readonly groups: readonly Group[];
  readonly rollouts: readonly Rollout[];
}

/**
 * Reads what changed of a run's groups, then of its rollouts and their groups, page by page: a snapshot may be large.
 */
export async function* readSiblings(
  { store }: App,
  { namespace }: Caller,
  run: bigint,
  where: ChangedIn,
): AsyncGenerator<Siblings, void, undefined> {
  for await (const { rows } of pages((page) => store.readChangedGroups(namespace, run, where, page))) {
    yield* ofGroups(rows);
  }
  for await (const { rows, groups } of pages((page) => store.readChangedRollouts(namespace, run, where, page))) {
    yield* ofGroups(groups);
    for (const rollouts of rowParts(rows)) yield { groups: [], rollouts };
  }
  yield* readLive(store, namespace, run, where);
}

/** Turns and rewards of live rollouts change without a change of their rows. A snapshot has them already. */
async function* readLive(
  store: App['store'],
  namespace: string,
  run: bigint,
  { since }: ChangedIn,
): AsyncGenerator<Siblings, void, undefined> {
  if (since === undefined) return;
  for (let after: bigint | undefined; ; ) {
    const rows = await store.readLiveRollouts(namespace, run, { limit: ROWS, after });
    for (const rollouts of rowParts(rows)) yield { groups: [], rollouts };
    if (rows.length < ROWS) return;
    after = rows.at(-1)?.key;
  }
}

function* ofGroups(all: readonly Group[]): Generator<Siblings> {
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
 * What the watcher was told of groups and rollouts. As with stages, the last look is enough: a row that is found again
 * was found by the look before as well. A group is found once for its own change and once for each page of its
 * rollouts.
 */
export class SiblingsShown {
  #last: ReadonlyMap<string, string> = new Map();

  async *news(read: AsyncIterable<Siblings>): AsyncGenerator<Siblings, void, undefined> {
    const now = new Map<string, string>();
    const isNew = (name: string, sign: string): boolean => {
      const told = now.get(name) ?? this.#last.get(name);
      if (now.size < REMEMBERED) now.set(name, sign);
      return told !== sign;
    };
    for await (const some of read) {
      const groups = some.groups.filter((group) => isNew(`g${group.key}`, groupSign(group)));
      const rollouts = some.rollouts.filter((rollout) => isNew(`r${rollout.key}`, rolloutSign(rollout)));
      if (groups.length + rollouts.length > 0) yield { groups, rollouts };
    }
    this.#last = now;
  }
}

/** A rollout changes by its row, and while it is live with its trajectory. The end of its lease alone is no change. */
function rolloutSign({ revision, turns, reward }: Rollout): string {
  return `${revision} ${turns} ${reward}`;
}

/** A group changes with its rollouts, its own revision only where they end. */
function groupSign({ revision, statistics }: Group): string {
  const { pending, live, completed, failed, cancelled, judged, successes, rewards, best } = statistics;
  const counts = [revision, pending, live, completed, failed, cancelled, judged, successes, rewards.count];
  return [...counts, rewards.mean, best?.rolloutId].join(' ');
}
