import { readFileSync } from 'node:fs';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import tls from 'node:tls';
import { Role } from '../gen/es/anabranch/v1/access_pb.js';
import { StageKind } from '../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, connectClient, openWriter, readSteps } from '../src/client/index.ts';
import { Random } from '../src/demo/cartpole.ts';
import { createPostgresDatabase } from '../test/support/database.ts';
import { type PostgresServer, startPostgres } from '../test/support/postgres.ts';
import type { Engine } from './bench.ts';
import { rowPayload, variantsOf, writeNonce } from './payload.ts';
import { cpuSeconds, type SpawnedServer, spawnServer } from './processes.ts';
import type { ServerSettings } from './programs/server.ts';

/**
 * The resources of benches. Data is in a folder beside the dependencies, on the disk of the checkout, because a temp
 * folder may be in memory. Postgres starts when it is first needed, with fsync on. BENCH_DATABASE_URL names another
 * Postgres on which databases may be created.
 */
export class BenchResources {
  readonly #dir: string;
  readonly #givenPostgres: string | undefined;
  readonly #profileDir: string | undefined;
  #postgres: Promise<PostgresServer> | undefined;
  readonly #closers: (() => Promise<void>)[] = [];

  private constructor(dir: string, givenPostgres: string | undefined, profileDir: string | undefined) {
    this.#dir = dir;
    this.#givenPostgres = givenPostgres;
    this.#profileDir = profileDir;
  }

  static async make(givenPostgres: string | undefined, profileDir: string | undefined): Promise<BenchResources> {
    const parent = path.resolve(import.meta.dirname, '../node_modules/.cache/bench');
    await mkdir(parent, { recursive: true });
    return new BenchResources(await mkdtemp(path.join(parent, 'run-')), givenPostgres, profileDir);
  }

  /** Creates a folder, removed by `clear`. */
  async folder(): Promise<string> {
    const dir = await mkdtemp(path.join(this.#dir, 'folder-'));
    this.#closers.push(() => rm(dir, { recursive: true, force: true }));
    return dir;
  }

  /** Creates a database, dropped by `clear`. Returns its URL. */
  async database(engine: Engine): Promise<string> {
    if (engine === 'sqlite') {
      const dir = await mkdtemp(path.join(this.#dir, 'sqlite-'));
      this.#closers.push(() => rm(dir, { recursive: true, force: true }));
      return `sqlite:${path.join(dir, 'data.db')}`;
    }
    const database = await createPostgresDatabase(this.#givenPostgres ?? (await this.#startedPostgres()).url);
    this.#closers.push(() => database.drop());
    return database.url;
  }

  /** Creates a database with the service's tables and no rows. Returns its URL. */
  async emptySchema(engine: Engine): Promise<string> {
    const database = await this.database(engine);
    const server = await spawnServer({ kind: 'real', database } satisfies ServerSettings, undefined);
    await server.stop();
    return database;
  }

  /** Starts a server on a database (default: a new one), stopped by `clear`. */
  async server(
    kind: ServerSettings['kind'],
    engine: Engine,
    database?: string,
    settings: Pick<ServerSettings, 'mergeIdleMs' | 'tls' | 'keyFile' | 'issuer' | 'otel'> = {},
  ): Promise<BenchServer> {
    const url = database ?? (await this.database(engine));
    const server = await spawnServer(
      { kind, database: url, ...settings } satisfies ServerSettings,
      kind === 'real' ? this.#profileDir : undefined,
    );
    const postgres = engine === 'postgres' ? await this.#postgres : undefined;
    const pids = postgres === undefined ? [server.pid] : [server.pid, postgres.pid];
    const { tls, keyFile, issuer } = settings;
    const token = keyFile === undefined ? issuer?.token : readFileSync(keyFile, 'utf8').trim();
    const made = new BenchServer(kind, server, url, pids, { ca: tls?.ca, token });
    this.#closers.push(() => made.stop());
    return made;
  }

  /** Removes everything created since the last call, in reverse order. */
  async clear(): Promise<void> {
    for (const close of this.#closers.splice(0).reverse()) await close();
  }

  async close(): Promise<void> {
    await this.clear();
    await (await this.#postgres)?.stop();
    await rm(this.#dir, { recursive: true, force: true });
  }

  #startedPostgres(): Promise<PostgresServer> {
    // Sized for a machine of this kind. Settings of durability have their defaults.
    const settings = { shared_buffers: '512MB', max_wal_size: '4GB', wal_buffers: '16MB', checkpoint_timeout: '15min' };
    // The path of the socket has a limit of about 100 bytes, so a deep checkout uses the temp folder.
    const parent = path.dirname(this.#dir);
    this.#postgres ??= startPostgres({ settings, dir: parent.length < 60 ? parent : os.tmpdir() });
    return this.#postgres;
  }
}

/** As large as the observation of a small environment. */
const STEP_INFO = JSON.stringify({ observation: Array.from({ length: 8 }, (_, i) => Math.sqrt(i + 2)) });

export class BenchServer {
  readonly kind: ServerSettings['kind'];
  readonly address: string;
  readonly database: string;
  /** With TLS: the certificate that clients trust. */
  readonly ca: string | undefined;
  /** With authentication: the key that callers show. */
  readonly token: string | undefined;
  /** Of the server first, and of the Postgres that the bench started for it. */
  readonly pids: readonly number[];
  readonly #stopServer: () => Promise<void>;
  #client: AnabranchClient | undefined;

  constructor(
    kind: ServerSettings['kind'],
    server: SpawnedServer,
    database: string,
    pids: readonly number[],
    { ca, token }: Pick<BenchServer, 'ca' | 'token'>,
  ) {
    this.kind = kind;
    this.address = server.address;
    this.database = database;
    this.ca = ca;
    this.token = token;
    if (ca !== undefined) tls.setDefaultCACertificates([...tls.getCACertificates('default'), ca]);
    this.pids = pids;
    this.#stopServer = server.stop;
  }

  /** Returns the CPU time of the server, and of the Postgres that the bench started for it. */
  cpuSeconds(): number {
    return cpuSeconds(this.pids);
  }

  /** Creates empty trajectories. Returns their ids. */
  async trajectories(count: number, experimentId = ''): Promise<string[]> {
    const made: string[] = [];
    for (let i = 0; i < count; i += 1) {
      const { trajectory } = await this.#connected().trajectories.createTrajectory({ experimentId });
      made.push(trajectory!.id);
    }
    return made;
  }

  /** Deletes a trajectory without branches. Returns the duration in milliseconds. */
  async deleteTrajectory(trajectoryId: string): Promise<number> {
    const begun = performance.now();
    await this.#connected().trajectories.deleteTrajectory({ trajectoryId });
    return performance.now() - begun;
  }

  /**
   * Creates runs with a plan in the experiment `default`. Returns their ids. With `main`, each has a main trajectory of
   * one step.
   */
  async runs(count: number, { main = false } = {}): Promise<string[]> {
    const client = this.#connected();
    const plan = { concurrency: 8, stagePlans: [{ kind: StageKind.TRAIN_STEP, stages: 10, substeps: 4 }] };
    const made: string[] = [];
    const make = async () => {
      const { run } = await client.runs.createRun({
        labels: { model: 'pid', task: 'cartpole' },
        configJson: '{"optimizer":{"lr":0.1,"betas":[0.9,0.999]},"kp":1.5}',
        plan,
        ...(main ? { mainTrajectory: { root: { reward: 1 } } } : {}),
      });
      made.push(run!.id);
    };
    while (made.length < count) await Promise.all(Array.from({ length: Math.min(16, count - made.length) }, make));
    return made;
  }

  /** Creates a tree of runs: a root and branches at step 0, each with a main trajectory. Returns the root's id. */
  async runTree(branches: number): Promise<string> {
    const [root] = await this.runs(1, { main: true });
    const branch = () =>
      this.#connected().runs.branchRun({
        runId: root!,
        stepNumber: 0n,
        configOverridesJson: '{"optimizer":{"lr":0.01}}',
      });
    for (let left = branches; left > 0; left -= 8) await Promise.all(Array.from({ length: Math.min(8, left) }, branch));
    return root!;
  }

  /** Creates series of a run with one point each. Their names are `loss-0`, `loss-1`, …, in order of creation. */
  async series(runId: string, count: number): Promise<void> {
    for (let i = 0; i < count; i += 1)
      await this.#connected().runs.logMetrics({ runId, points: [{ key: `loss-${i}`, metricStep: 0n, value: 1 }] });
  }

  /**
   * Creates a run with ten stages, planned with ten groups of 8 each, and one hundred tasks. Returns the run's id, and
   * the stages' ids by number.
   */
  async stages(): Promise<{ readonly runId: string; readonly stageIds: readonly string[] }> {
    const { runs, rollouts } = this.#connected();
    const stagePlan = { kind: StageKind.TRAIN_STEP, stages: 10, groupsPerStage: 10, groupSize: 8, maxTurns: 10 };
    const plan = { concurrency: 8, stagePlans: [stagePlan] };
    const { run } = await runs.createRun({ plan, initialStatus: Status.RUNNING });
    const runId = run!.id;
    const stageIds: string[] = [];
    for (let number = 0n; number < 10n; number += 1n) {
      const at = { runId, kind: StageKind.TRAIN_STEP, number, initialStatus: Status.RUNNING };
      stageIds.push((await runs.getOrCreateStage(at)).stage!.id);
    }
    await rollouts.upsertTasks({ tasks: Array.from({ length: 100 }, (_, i) => ({ id: `task-${i}` })) });
    return { runId, stageIds };
  }

  /**
   * Creates rollouts in their own group, claims them, and plays turns of each. Returns the ids of their trajectories.
   */
  async liveRollouts(stageId: string, count: number, turns: number): Promise<string[]> {
    const { rollouts } = this.#connected();
    const made = Array.from({ length: count }, (_, i) => ({ groupNumber: 10_000_000n, number: BigInt(i) }));
    await rollouts.createRollouts({ stageId, rollouts: made });
    const trajectories: string[] = [];
    while (trajectories.length < count) {
      const lease = { seconds: 80_000n };
      const { claims } = await rollouts.claimRollouts({
        stageId,
        workerId: 'w',
        maxRollouts: 100,
        leaseDuration: lease,
      });
      trajectories.push(...claims.map(({ trajectory }) => trajectory!.id));
    }
    for (const id of trajectories) await this.append(id, 0, turns + 1);
    return trajectories;
  }

  async completeRun(runId: string): Promise<void> {
    await this.#connected().runs.completeRun({ runId });
  }

  /** Creates COMPLETED rollouts with this many turns each. Returns the ids of their trajectories. */
  async completedRollouts(stageId: string, count: number, turns: number): Promise<string[]> {
    const trajectories = await this.liveRollouts(stageId, count, turns);
    const { rollouts } = this.#connected();
    const listed = await rollouts.listRollouts({ stageId, pageSize: 1000 });
    for (const { id, attempt } of listed.rollouts) await rollouts.completeRollout({ rolloutId: id, attempt });
    return trajectories;
  }

  /** Appends small steps with a new writer. */
  async append(trajectoryId: string, from: number, count: number): Promise<void> {
    const expectedNextStepNumber = BigInt(from);
    await using writer = await openWriter(this.#connected(), { trajectoryId, expectedNextStepNumber });
    await Promise.all(Array.from({ length: count }, () => writer.append({ reward: 1, metrics: { tick: 1 } })));
  }

  /** Creates an experiment. Returns its id. */
  async emptyExperiment(): Promise<string> {
    const { experiment } = await this.#connected().runs.createExperiment({ name: 'retained' });
    return experiment!.id;
  }

  /** Creates an experiment whose trajectories have steps with random rewards, the same each time. Returns its id. */
  async experiment(trajectories: number, stepsEach: number): Promise<string> {
    const client = this.#connected();
    const { experiment } = await client.runs.createExperiment({ name: 'scored' });
    const experimentId = experiment!.id;
    const random = Random.seeded(14);
    const fill = async () => {
      const { trajectory } = await client.trajectories.createTrajectory({ experimentId });
      await using writer = await openWriter(client, { trajectoryId: trajectory!.id });
      const appends = Array.from({ length: stepsEach }, () =>
        writer.append({ reward: random.uniform(-1, 1), infoJson: STEP_INFO }),
      );
      await Promise.all(appends);
    };
    for (let left = trajectories; left > 0; left -= 16)
      await Promise.all(Array.from({ length: Math.min(16, left) }, fill));
    return experimentId;
  }

  /** Creates trajectories of CartPole steps, each with a state of its own. */
  async episodes(trajectories: number, stepsEach: number): Promise<void> {
    const client = this.#connected();
    const payloads = Array.from({ length: variantsOf('step-with-state') }, (_, i) => rowPayload('step-with-state', i));
    let next = 0;
    const fill = async () => {
      for (let episode = next++; episode < trajectories; episode = next++) {
        const { trajectory } = await client.trajectories.createTrajectory({});
        await using writer = await openWriter(client, { trajectoryId: trajectory!.id });
        const appends = Array.from({ length: stepsEach }, (_, number) => {
          const { actions, observations, metrics, state, nonceAt } = payloads[number % payloads.length]!;
          const data = Buffer.from(state!);
          writeNonce(data, nonceAt, episode, number);
          const states = { env: { data, mediaType: 'application/json' } };
          return writer.append({ actions: [...actions], observations: [...observations], reward: 1, metrics, states });
        });
        await Promise.all(appends);
      }
    };
    await Promise.all(Array.from({ length: 16 }, fill));
  }

  /** Returns the ids of the trajectories of an experiment, at most 1,000. */
  async trajectoriesOf(experimentId: string): Promise<string[]> {
    const { trajectories } = await this.#connected().trajectories.listTrajectories({ experimentId, pageSize: 1000 });
    return trajectories.map(({ id }) => id);
  }

  /** Creates a branch. Returns its id. */
  async branch(trajectoryId: string, stepNumber: number): Promise<string> {
    const at = { trajectoryId, stepNumber: BigInt(stepNumber) };
    const { trajectory } = await this.#connected().trajectories.branchTrajectory(at);
    return trajectory!.id;
  }

  /** Resolves when the trajectory has this many steps. */
  async untilLong(trajectoryId: string, steps: number): Promise<void> {
    const endStepNumber = BigInt(steps);
    for await (const { step } of readSteps(this.#connected(), { trajectoryId, endStepNumber, follow: true })) {
      if (step.stepNumber + 1n === endStepNumber) return;
    }
  }

  /** Creates a key of another principal, for a namespace of its own. Needs authentication. */
  async key(name: string): Promise<string> {
    const { secret } = await this.#connected().admin.createKey({ name, role: Role.WRITE, namespaces: [name] });
    return secret;
  }

  async stop(): Promise<void> {
    this.#client?.close();
    await this.#stopServer();
  }

  #connected(): AnabranchClient {
    const address = `${this.ca === undefined ? 'http' : 'https'}://${this.address}`;
    this.#client ??= connectClient({ address, ...(this.token === undefined ? {} : { token: this.token }) });
    return this.#client;
  }
}
