/** Reads parts of a run in full: its tree, its groups and rollouts, and its series with few points. */
import type { Group, Rollout } from '../../gen/es/anabranch/v1/rollout_pb.js';
import type { MetricSeries, Run, Stage } from '../../gen/es/anabranch/v1/run_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { AnabranchClient } from '../client/index.ts';
import type { RolloutParts } from './rollouts_table.ts';
import { FIRST_ANSWER, readAll, readUntil } from './server_access.ts';

export function readRunTree(client: AnabranchClient, runId: string): Promise<Run[]> {
  return readAll(
    (pageToken) => client.runs.getRunTree({ runId, pageSize: 1000, pageToken }, FIRST_ANSWER),
    ({ runs }) => runs,
  );
}

/** More points than a sparkline has columns, so that each column shows the mean of several points. */
const MOST_POINTS = 1000;

interface SeriesWanted {
  readonly runId: string;
  /** Reads only these keys. Empty: all. */
  readonly keys: readonly string[];
  /** The stage whose series are also read. */
  readonly stageId: string | undefined;
}

/** Returns the run's own series, then those of the stage. */
export async function readSeries(
  client: AnabranchClient,
  { runId, keys, stageId }: SeriesWanted,
): Promise<MetricSeries[]> {
  const whole = { runIds: [runId], keys: [...keys], maxPoints: MOST_POINTS };
  const scopes = [{ runLevelOnly: true }, ...(stageId === undefined ? [] : [{ stageId }])];
  const found = new Map<string, MetricSeries>();
  for (const scope of scopes) {
    for await (const { series } of client.runs.readMetrics({ ...whole, ...scope }, FIRST_ANSWER)) {
      for (const part of series) {
        const name = `${part.stageId} ${part.key}`;
        const before = found.get(name);
        // A series that is too long for one message continues in the next one.
        before?.metricSteps.push(...part.metricSteps);
        before?.values.push(...part.values);
        if (before === undefined) found.set(name, part);
      }
    }
  }
  return [...found.values()];
}

const PAGE_SIZE = 1000n;
/** Number of groups of a stage that are listed if their rollouts are not. */
const MOST_GROUPS = 50;

/** Returns the stages that have groups, each with its first groups. */
export async function readStageGroups(client: AnabranchClient, stages: readonly Stage[]): Promise<RolloutParts[]> {
  const parts = await Promise.all(
    stages.map(async (stage) => {
      const listing = { stageId: stage.id, pageSize: MOST_GROUPS };
      const { groups, nextPageToken } = await client.rollouts.listGroups(listing, FIRST_ANSWER);
      return { stage, groups, allGroups: nextPageToken === '', rollouts: [] };
    }),
  );
  return parts.filter(({ groups }) => groups.length > 0);
}

/** Returns the first rollouts of a run, by stage and group, and whether there are more. */
export async function readRunRollouts(
  client: AnabranchClient,
  runId: string,
  limit: bigint,
): Promise<{ parts: RolloutParts[]; more: boolean }> {
  const { items, more } = await readUntil(
    (pageToken, before: readonly Rollout[]) => {
      const left = limit - BigInt(before.length);
      const pageSize = Number(left < PAGE_SIZE ? left : PAGE_SIZE);
      return client.rollouts.listRollouts({ runId, pageSize, pageToken }, FIRST_ANSWER);
    },
    ({ rollouts }) => rollouts,
    ({ length }) => BigInt(length) >= limit,
  );
  return { parts: await readStages(client, items), more };
}

/** Reads the stages of the listed rollouts with their groups: all groups, or those of the listed rollouts. */
async function readStages(client: AnabranchClient, rollouts: readonly Rollout[]): Promise<RolloutParts[]> {
  const parts: RolloutParts[] = [];
  for (const [stageId, own] of Map.groupBy(rollouts, (rollout) => rollout.stageId)) {
    const lastNumber = own.reduce((last, { groupNumber }) => (groupNumber > last ? groupNumber : last), 0n);
    const [{ stage }, groups] = await Promise.all([
      client.runs.getStage({ stageId, view: View.BASIC }, FIRST_ANSWER),
      readGroups(client, stageId, lastNumber),
    ]);
    if (stage === undefined) throw new Error('the response of the server has no stage');
    parts.push({ stage, ...groups, rollouts: own });
  }
  return parts;
}

async function readGroups(
  client: AnabranchClient,
  stageId: string,
  lastNumber: bigint,
): Promise<{ groups: Group[]; allGroups: boolean }> {
  const pageSize = Number(PAGE_SIZE);
  const { items, more } = await readUntil(
    (pageToken) => client.rollouts.listGroups({ stageId, pageSize, pageToken }, FIRST_ANSWER),
    ({ groups }) => groups,
    (groups) => (groups.at(-1)?.number ?? 0n) >= lastNumber,
  );
  return { groups: items, allGroups: !more };
}
