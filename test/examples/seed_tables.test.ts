import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { keptFields } from '../docs/coming_from.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import * as cua from './seeds/cua.ts';
import * as turns from './seeds/cua_turns.ts';
import * as fle from './seeds/fle.ts';
import * as records from './seeds/records.ts';
import { ROLLOUT } from './seeds/rollout_records.ts';
import type { Row, Rows } from './seeds/rows.ts';
import * as ssdb from './seeds/ssdb.ts';

/** Every column of their tables. */
const tables: Readonly<Record<string, Readonly<Record<string, readonly string[]>>>> = JSON.parse(
  readFileSync(new URL('../docs/seed-tables.json', import.meta.url), 'utf8'),
);
const systems = [
  { system: 'FLE', rows: records.FLE, kept: fle.KEPT },
  { system: 'CUA', rows: records.CUA, kept: { ...cua.KEPT, ...turns.KEPT } },
  { system: 'SSDB', rows: records.SSDB, kept: ssdb.KEPT },
];

describe.each(systems)('the records of $system', ({ system, rows, kept }) => {
  it.each(Object.entries(tables[system] ?? {}))(
    'of %s have every column, and each column has a value in one of them',
    (table, columns) => {
      const ofTable = rows[table] ?? [];
      for (const row of ofTable) expect(Object.keys(row).toSorted()).toEqual(columns.toSorted());
      expect(columns.filter((column) => ofTable.every((row) => row[column] === null))).toEqual([]);
    },
  );

  it('keep in metadata exactly the columns that docs/coming-from.md says', () => {
    const told = Object.entries(keptFields(system)).map(([table, columns]) => [table, columns.toSorted()]);
    expect(Object.fromEntries(told)).toEqual(
      Object.fromEntries(Object.entries(kept).map(([table, columns]) => [table, columns.toSorted()])),
    );
  });
});

describe.each(ENGINES)('data imported from the three systems are returned unchanged, on %s:', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  it("FLE's trajectories, steps and game states, F-16 to F-18", async () => {
    const { trajectories = [], steps = [], game_states = [] } = records.FLE;
    const id = await fle.takeOverTrajectory(client, records.FLE);
    expect(await fle.giveBackTrajectory(client, id)).toEqual({ trajectories, steps, game_states });
  });

  it("CUA's training with all its records, C-07 to C-14, C-30 to C-40", async () => {
    const runId = await cua.takeOverTraining(client, records.CUA);
    expect(await cua.giveBackTraining(client, runId)).toEqual(records.CUA);
  });

  it("success, rewards and turns of CUA's rows, as the service computes them", async () => {
    const { runs } = await client.runs.listRuns({ labels: { model: 'Qwen/Qwen3-VL-30B-A3B-Instruct' } });
    const runId = runs[0]?.run?.id ?? '';
    const [done] = (await client.rollouts.listRollouts({ runId, labels: { rollout: '81' } })).rollouts;
    expect(done).toMatchObject({ success: true, validationPassed: true, reward: 0.5, turns: 1n, attempt: 1 });
    const { group } = await client.rollouts.getGroup({ groupId: done?.groupId ?? '' });
    expect(group).toMatchObject({
      status: Status.COMPLETED,
      statistics: { rolloutCount: 2n, completedCount: 1n, failedCount: 1n, successCount: 1n, rewardMean: 0.25 },
    });
    const { environments } = await client.rollouts.listEnvironments({ rolloutId: done?.id ?? '' });
    expect(environments.map(({ externalId, status }) => [externalId, status])).toEqual([
      ['gbox-7f3a', Status.COMPLETED],
    ]);
  });

  it("SSDB's simulations, runs, states and their order", async () => {
    const id = await ssdb.takeOverSimulation(client, records.SSDB);
    expect(await ssdb.giveBackSimulation(client, id)).toEqual(records.SSDB);
    const { run } = await client.runs.getRun({ runName: 'high-lr-experiment', experimentName: 'CartPole sweep' });
    expect(JSON.parse(run?.configJson ?? '')).toEqual({ lr: 0.01, net: { hidden: [64, 64], activation: 'relu' } });
  });
});

/** The engines store every status alike: test/store proves that. */
describe('rows of the three systems are returned unchanged in every status:', () => {
  let server: TestServer;
  let client: AnabranchClient;
  beforeAll(async () => {
    server = await startTestServer();
    client = connectClient({ address: server.url });
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  it.each(['pending', 'env_creation', 'agent_init', 'running', 'completed', 'failed', 'cancelled'])(
    'a rollout that is %s, with a value in every column',
    async (status) => {
      const phase = { env_creation: 'env_creation', agent_init: 'agent_initialization' }[status] ?? 'task_execution';
      const own = { id: 181, env_id: null, status, current_phase: phase, rollout_id: crypto.randomUUID() };
      const rollout = { ...ROLLOUT, ...own, ...(status === 'pending' ? { trajectory_data_json: null } : {}) };
      const { validation = [], ...rest } = records.CUA;
      const rows: Rows = {
        ...rest,
        training: [sparse('CUA', 'training', { ...leastOf('training'), run_name: `with a rollout ${status}` })],
        ...{ turn: [], action: [], obs: [], status_history: [], eval: [], baseline: [], environment: [] },
        group: records.CUA.group?.slice(0, 1) ?? [],
        rollout: [rollout, { ...rollout, id: 182, rollout_id: crypto.randomUUID(), env_index: 1 }],
        validation: validation.map((row) => ({ ...row, rollout_id: 181 })),
      };
      const runId = await cua.takeOverTraining(client, rows);
      expect(await cua.giveBackTraining(client, runId)).toEqual(rows);
    },
  );

  it.each(['pending', 'initializing', 'running', 'paused', 'completed', 'failed', 'cancelled'])(
    'a training that is %s, and an eval of it, with few values',
    async (status) => {
      const training = sparse('CUA', 'training', { ...leastOf('training'), status, run_name: `${status} one` });
      // Runs are paused, stages are not.
      const evaluation = sparse('CUA', 'eval', {
        ...leastOf('eval'),
        status: status === 'paused' ? 'running' : status,
      });
      const runId = await cua.takeOverTraining(client, { training: [training], eval: [evaluation] });
      expect(await cua.giveBackTraining(client, runId)).toMatchObject({ training: [training], eval: [evaluation] });
    },
  );

  it.each(['pending', 'rollout_collecting', 'rollout_running', 'training', 'completed', 'failed'])(
    'a step that is %s',
    async (status) => {
      const phases: Record<string, string> = {
        rollout_collecting: 'rollout_collection',
        rollout_running: 'rollout_execution',
        training: 'training',
      };
      const training = sparse('CUA', 'training', { ...leastOf('training'), run_name: `with a step ${status}` });
      const [full = {}] = records.CUA.step ?? [];
      const step = { ...full, status, current_phase: phases[status] ?? null };
      const runId = await cua.takeOverTraining(client, { training: [training], step: [step] });
      expect(await cua.giveBackTraining(client, runId)).toMatchObject({ step: [step] });
    },
  );

  it.each(['active', 'paused', 'completed', 'failed'])(
    'a simulation run that is %s, with unusual columns',
    async (status) => {
      const [experiment, run] = [crypto.randomUUID(), crypto.randomUUID()];
      const simulation = { ...full('simulations'), id: experiment, name: `odd and ${status}` };
      const rows: Rows = {
        simulations: [
          { ...simulation, max_steps: { train: 500 }, seed: [1, 2], tags: { lr: true }, agent_config: [1] },
        ],
        simulation_runs: [
          {
            ...records.SSDB.simulation_runs?.[0],
            ...{ id: run, simulation_id: experiment, status, config_overrides: { lr: 1 } },
          },
        ],
        states: records.SSDB.states?.slice(0, 3) ?? [],
        run_state_sequence: records.SSDB.run_state_sequence?.slice(0, 3).map((row) => ({ ...row, run_id: run })) ?? [],
      };
      await ssdb.takeOverSimulation(client, rows);
      expect(await ssdb.giveBackSimulation(client, experiment)).toEqual(rows);
    },
  );
});

/** A row with the given values, and defaults for the columns that its table requires. */
function sparse(system: string, table: string, fields: Row): Row {
  const columns = tables[system]?.[table] ?? [];
  return { ...Object.fromEntries(columns.map((column) => [column, null])), ...fields };
}

function leastOf(table: string): Row {
  const {
    id = null,
    run_name = null,
    training_id = null,
    step = null,
    model_path = null,
  } = { ...records.CUA[table]?.[0] };
  return table === 'training'
    ? { id, run_name, model_name: 'm', total_steps: 3, status: 'pending' }
    : { id, training_id, step, model_path };
}

function full(table: string): Row {
  return { ...records.SSDB[table]?.[0] };
}
