import { pino } from 'pino';
import { loadConfig } from '../../src/config.ts';
import { openStore } from '../../src/store/open.ts';
import { percentile, program } from './program.ts';

/** What the service's own store takes for a question, in this process: all but the wire. */
export interface StoredBooksSettings {
  readonly task: { readonly name: 'list' } | { readonly name: 'tree'; readonly runId: string };
  readonly database: string;
  readonly warmupSeconds: number;
  readonly seconds: number;
}

export interface StoredBooksFigures {
  readonly p50Ms: number;
}

const NAMESPACE = 'default';

await program(async ({ task, database, warmupSeconds, seconds }: StoredBooksSettings): Promise<StoredBooksFigures> => {
  const config = loadConfig({ env: {}, flags: { database }, cwd: '/', readFile: () => undefined });
  const store = await openStore(config.database, { logger: pino({ level: 'silent' }) });
  const list = async () => {
    const runs = await store.listRuns(NAMESPACE, {}, { limit: 51, after: undefined }, 'BASIC');
    await store.tallyRuns(
      NAMESPACE,
      runs.slice(0, 50).map(({ key }) => key),
    );
  };
  const tree = async (runId: string) => {
    const run = await store.getRun(NAMESPACE, { id: runId });
    await store.listRunTree(NAMESPACE, run!.tree.key, { limit: 2000, after: undefined });
  };
  const again = async (forSeconds: number): Promise<number[]> => {
    const times: number[] = [];
    const end = performance.now() + forSeconds * 1000;
    do {
      const begun = performance.now();
      await (task.name === 'list' ? list() : tree(task.runId));
      times.push(performance.now() - begun);
    } while (performance.now() < end);
    return times;
  };
  await again(warmupSeconds);
  return { p50Ms: percentile(await again(seconds), 0.5) };
});
