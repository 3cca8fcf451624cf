import { randomUUID } from 'node:crypto';
import { create } from '@bufbuild/protobuf';
import { pino } from 'pino';
import { v7 } from 'uuid';
import { ListGroupsRequestSchema, ListRolloutsRequestSchema } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import {
  GetRunRequestSchema,
  GetRunTreeRequestSchema,
  ListRunsRequestSchema,
  SummarizeRequestSchema,
  SummaryKey,
} from '../../gen/es/anabranch/v1/run_service_pb.js';
import { loadConfig } from '../../src/config/config.ts';
import { ANONYMOUS } from '../../src/domain/caller.ts';
import { groupMethods } from '../../src/service/group/group.ts';
import type { Call } from '../../src/service/method.ts';
import { rolloutMethods } from '../../src/service/rollout/rollout.ts';
import { runMethods } from '../../src/service/run/run.ts';
import { summaryMethods } from '../../src/service/run/summary.ts';
import { openStore } from '../../src/store/open.ts';
import { type App, createApp } from '../../src/stream/app.ts';
import { callOf } from '../../test/support/parts_call.ts';
import { openRolloutSql } from '../rollout_sql.ts';
import { openRunSql } from '../run_sql.ts';
import { percentile, program } from './program.ts';

/**
 * Measures a use case in this process without the wire, and its hand-written SQL. They alternate every tenth of a
 * second, because the speed of a shared machine changes from second to second.
 */
export interface UseCaseSettings {
  readonly task:
    | { readonly name: 'list-runs' }
    | { readonly name: 'run-tree' | 'progress' | 'summarize'; readonly runId: string }
    | { readonly name: 'list-rollouts'; readonly runId: string; readonly stageId: string };
  readonly database: string;
  readonly warmupSeconds: number;
  readonly seconds: number;
}

export interface UseCaseFigures {
  readonly p50Ms: number;
  readonly byHandP50Ms: number;
}

const TURN_MS = 100;

await program(async ({ task, database, warmupSeconds, seconds }: UseCaseSettings): Promise<UseCaseFigures> => {
  const config = loadConfig({ env: {}, flags: { database }, cwd: '/', readFile: () => undefined });
  const logger = pino({ level: 'silent' });
  const store = await openStore(config.database, { logger });
  const app = createApp({ store, ids: { uuid: () => v7(), uid: randomUUID }, logger, settings: {} });
  const byHand = await handWrittenSql(task, database);
  const timesOf = async (work: () => Promise<unknown>): Promise<number[]> => {
    const times: number[] = [];
    const end = performance.now() + TURN_MS;
    do {
      const begun = performance.now();
      await work();
      times.push(performance.now() - begun);
    } while (performance.now() < end);
    return times;
  };
  const callRepeatedly = async (forSeconds: number) => {
    const times = { service: [] as number[], byHand: [] as number[] };
    const end = performance.now() + forSeconds * 2000;
    do {
      times.service.push(...(await timesOf(() => ask(app, task))));
      times.byHand.push(...(await timesOf(byHand)));
    } while (performance.now() < end);
    return times;
  };
  if (warmupSeconds > 0) await callRepeatedly(warmupSeconds);
  const times = await callRepeatedly(seconds);
  await app.close();
  await store.close();
  return { p50Ms: percentile(times.service, 0.5), byHandP50Ms: percentile(times.byHand, 0.5) };
});

async function handWrittenSql(task: UseCaseSettings['task'], database: string): Promise<() => Promise<unknown>> {
  if (task.name === 'run-tree') {
    const sql = await openRunSql(database);
    return () => sql.tree(task.runId);
  }
  if (task.name === 'list-runs') return (await openRunSql(database)).list;
  const sql = await openRolloutSql(database);
  const query = task.name === 'list-rollouts' ? 'list' : task.name;
  return () => sql[query]();
}

async function ask(app: App, task: UseCaseSettings['task']): Promise<void> {
  const call = callOf(app, ANONYMOUS);
  switch (task.name) {
    case 'list-runs':
      await runMethods.listRuns(create(ListRunsRequestSchema), call);
      break;
    case 'run-tree':
      await wholeTree(call, task.runId);
      break;
    case 'list-rollouts':
      await rolloutMethods.listRollouts(create(ListRolloutsRequestSchema, { runId: task.runId }), call);
      await groupMethods.listGroups(create(ListGroupsRequestSchema, { stageId: task.stageId }), call);
      break;
    case 'progress':
      await runMethods.getRun(create(GetRunRequestSchema, { runId: task.runId, progress: true }), call);
      break;
    case 'summarize': {
      const dimensions = [{ key: SummaryKey.TASK }, { label: 'model' }];
      const request = create(SummarizeRequestSchema, { runIds: [task.runId], dimensions, passAt: [1, 8] });
      await summaryMethods.summarize(request, call);
    }
  }
}

async function wholeTree(call: Call, runId: string): Promise<void> {
  let pageToken = '';
  do {
    const request = create(GetRunTreeRequestSchema, { runId, pageSize: 1000, pageToken });
    ({ nextPageToken: pageToken = '' } = await runMethods.getRunTree(request, call));
  } while (pageToken !== '');
}
