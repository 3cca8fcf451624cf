import process from 'node:process';
import type { RetentionPolicy } from '../../src/domain/retention.ts';
import { type Database, openStore } from '../../src/store/open.ts';

/** What the process is to remove, and after how many parts it stops and waits to be killed. */
export interface RetentionTask {
  readonly namespace: string;
  readonly policies: readonly RetentionPolicy[];
  readonly parts: number;
}

/** Applies policies in a process of its own, until it is killed. Writes one line for each part. */
const [database = '', task = ''] = process.argv.slice(2);
const store = await openStore(JSON.parse(database) as Database, { logger: console });
const { namespace, policies, parts } = JSON.parse(task, revive) as RetentionTask;
let removed = 0;
for (const policy of policies) {
  for await (const { pruned, deletedFrom } of (await store.retain(namespace, policy, { apply: true })).parts) {
    // A part may have only what is pinned.
    if (pruned.length === 0 && deletedFrom === undefined) continue;
    process.stdout.write('removed\n');
    removed += 1;
    if (removed >= parts) setInterval(() => {}, 60_000);
    if (removed >= parts) await new Promise(() => {});
    await store.collectStates(24, 5);
  }
}
throw new Error(`only ${removed} parts were there to remove`);

/** JSON has neither bigint nor Map. */
function revive(key: string, value: unknown): unknown {
  if (key === 'labels') return new Map();
  return ['keepEvery', 'olderThan'].includes(key) ? BigInt(value as string) : value;
}
