import { setTimeout as delay } from 'node:timers/promises';
import type { Attempt } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import { StageKind } from '../../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, connectClient, reasonOf } from '../../../src/client/index.ts';
import { requireIntact } from '../../support/intact.ts';
import type { Figures } from '../figures.ts';
import { createDatabaseOf, type Installation, type Instance, startInstances } from '../instances.ts';
import { type Random, seededRandom } from '../random.ts';
import { spawnMergingServer } from '../spawn-merging.ts';
import { checkClaims, type Violation } from './check.ts';
import { GIVEN_BACK, Journal, type Token } from './journal.ts';
import { collectRollouts, type StoredRollouts } from './stored.ts';
import { startWorkers, type WorkerProcess } from './worker_process.ts';

export interface ClaimsPlan extends Installation {
  /** Number of worker processes, and of workers in each. */
  readonly processes: number;
  readonly workersEach: number;
  readonly groups: number;
  readonly groupSize: number;
  /** Completed rollouts between two faults. */
  readonly doneBetween: readonly [least: number, most: number];
}

export interface ClaimsOutcome {
  readonly violations: readonly Violation[];
  /** Errors that no fault explains. */
  readonly surprises: readonly string[];
  readonly faultCounts: FaultCounts;
  readonly figures: Figures;
}

const NO_FAULTS = {
  'workers killed': 0,
  'servers killed': 0,
  'workers stopped': 0,
  /** Leases that had expired by the time the workers continued. */
  'leases that ran out while stopped': 0,
  'of these refused': 0,
};
type FaultCounts = Record<keyof typeof NO_FAULTS, number>;

/** Rarely too short on a busy machine, where each lost lease means an attempt in vain. */
const LEASE_SECONDS = 4;
/** A call that was sent just before a stop can end what a worker holds, so a stop can be in vain. */
const MOST_TRIES = 10;
/** Many more than faults: other proofs cover rollouts that fail. */
const MOST_ATTEMPTS = 100;

/**
 * Workers claim and complete all rollouts of a stage while they and the servers are killed, and stopped longer than
 * their leases.
 */
export async function injectFaultsIntoClaims(plan: ClaimsPlan): Promise<ClaimsOutcome> {
  await using database = await createDatabaseOf(plan);
  await using stack = new AsyncDisposableStack();
  const instances = await startInstances(plan, () => spawnMergingServer({ database: database.url }), stack);
  const client = stack.adopt(connectClient({ address: instances[0]!.proxy.url }), (open) => open.close());
  const stageId = await makeRollouts(client, plan);
  using trial = new Trial(plan, instances, client, stageId);
  await trial.play();
  await requireIntact(client);
  const stored = await collectRollouts(database);
  const { journal, faultCounts, random } = trial;
  const violations = checkClaims(journal, stored, plan, (worker) => trial.died(worker));
  const surprises = journal.of('surprise').map(({ worker, text }) => `${worker}: ${text}`);
  return { violations, surprises, faultCounts, figures: figuresOf(random.seed, plan, trial, stored, violations) };
}

async function makeRollouts(client: AnabranchClient, { groups, groupSize }: ClaimsPlan): Promise<string> {
  const { experiment } = await client.runs.createExperiment({ name: 'claims' });
  const { run } = await client.runs.createRun({ experimentId: experiment!.id, initialStatus: Status.RUNNING });
  const { stage } = await client.runs.getOrCreateStage({ runId: run!.id, kind: StageKind.TRAIN_STEP, number: 0n });
  const rollouts = Array.from({ length: groups * groupSize }, (_, i) => ({
    groupNumber: BigInt(Math.floor(i / groupSize)),
    number: BigInt(i % groupSize),
    maxAttempts: MOST_ATTEMPTS,
    retryDelay: {},
  }));
  await client.rollouts.createRollouts({ stageId: stage!.id, rollouts });
  await client.runs.closeQueue({ stageId: stage!.id });
  return stage!.id;
}

/** The processes of workers, and the faults. */
class Trial {
  readonly journal = new Journal();
  readonly faultCounts: FaultCounts = { ...NO_FAULTS };
  readonly random: Random = seededRandom();
  readonly began = performance.now();
  readonly #plan: ClaimsPlan;
  readonly #instances: readonly Instance[];
  readonly #client: AnabranchClient;
  readonly #stageId: string;
  readonly #processes: WorkerProcess[] = [];
  readonly #died: WorkerProcess[] = [];

  constructor(plan: ClaimsPlan, instances: readonly Instance[], client: AnabranchClient, stageId: string) {
    this.#plan = plan;
    this.#instances = instances;
    this.#client = client;
    this.#stageId = stageId;
  }

  died(worker: string): boolean {
    return this.#died.some((process) => process.owns(worker));
  }

  /** Waits until the workers find nothing more to do and have exited. */
  async play(): Promise<void> {
    const { processes, groups, groupSize, doneBetween } = this.#plan;
    for (let i = 0; i < processes; i += 1) this.#start();
    const end = groups * groupSize * 0.85;
    const faults = [() => this.#stopWorkers(), () => this.#killWorkers(), () => this.#killServer()];
    for (let round = 0; round < faults.length || this.journal.completed < end; round += 1) {
      // Each fault once while most of the rollouts are left: others work on meanwhile.
      const more = round < faults.length ? 1 : this.random.between(...doneBetween);
      await this.#until('more rollouts are done', this.journal.completed + more);
      await faults[round % faults.length]!();
    }
    await Promise.all(this.#processes.map(({ ended }) => ended));
  }

  #start(): void {
    const { workersEach: workers } = this.#plan;
    const number = this.#processes.length + 1;
    const addresses = this.#instances.map(({ proxy }) => proxy.url);
    const seed = this.random.between(0, 1_000_000);
    const plan = { addresses, name: `p${number}`, workers, stageId: this.#stageId, leaseSeconds: LEASE_SECONDS, seed };
    this.#processes.push(startWorkers(plan, this.journal));
  }

  /** Kills processes at any point of their work; others replace them. */
  async #killWorkers(): Promise<void> {
    const process = this.#pick();
    if (process === undefined) return;
    this.#died.push(process);
    process.signal('SIGKILL');
    this.faultCounts['workers killed'] += this.#plan.workersEach;
    await process.ended;
    this.#start();
  }

  async #killServer(): Promise<void> {
    const instance = this.random.pick(this.#instances);
    await instance.kill();
    this.faultCounts['servers killed'] += 1;
    await instance.restart();
  }

  async #stopWorkers(): Promise<void> {
    for (let tries = 0; tries < MOST_TRIES; tries += 1) {
      // After the kill of a server, nobody may hold a rollout for a moment.
      await this.#when('a worker holds a rollout', () => this.#holding() > 0 || this.#isOver());
      const process = this.#mostHolding();
      if (process === undefined || (await this.#stopped(process)) > 0) return;
    }
  }

  /** Stops a process until all its rollouts belong to others, then lets it go on. Returns how many leases ran out. */
  async #stopped(process: WorkerProcess): Promise<number> {
    process.signal('SIGSTOP');
    this.faultCounts['workers stopped'] += this.#plan.workersEach;
    const held = this.journal.heldBy(process.owns);
    const lost: Token[] = [];
    try {
      for (const token of held) if (await this.#ranOut(token)) lost.push(token);
    } finally {
      process.signal('SIGCONT');
    }
    await this.#when('stopped workers tell what became of what they held', () =>
      held.every((token) => this.journal.outcomeOf(token) !== undefined),
    );
    this.faultCounts['leases that ran out while stopped'] += lost.length;
    // To release a rollout that nobody holds is allowed, and changes nothing.
    const isRefused = (token: Token) => ['lost', 'released'].includes(this.journal.outcomeOf(token)!);
    this.faultCounts['of these refused'] += lost.filter(isRefused).length;
    return lost.length;
  }

  /**
   * Resolves once that attempt has ended, with whether its lease expired. A call sent just before the stop may have
   * ended it otherwise.
   */
  async #ranOut({ rollout: rolloutId, attempt: number }: Token): Promise<boolean> {
    for (const deadline = performance.now() + 30_000; performance.now() < deadline; await delay(50)) {
      const attempt = (await this.#attemptsOf(rolloutId)).find((one) => one.number === number);
      if (attempt?.endTime === undefined) continue;
      return attempt.status === Status.FAILED && attempt.message !== GIVEN_BACK;
    }
    throw new Error(`attempt ${number} of rollout ${rolloutId} kept its lease of ${LEASE_SECONDS} s for 30 s`);
  }

  async #attemptsOf(rolloutId: string): Promise<readonly Attempt[]> {
    try {
      return (await this.#client.rollouts.getRollout({ rolloutId }, { timeoutMs: 5_000 })).attempts;
    } catch (error) {
      if (reasonOf(error) === 'ROLLOUT_NOT_FOUND') throw error;
      return []; // a server that has just been killed
    }
  }

  #pick(): WorkerProcess | undefined {
    const running = this.#processes.filter((process) => process.running);
    return running.length === 0 ? undefined : this.random.pick(running);
  }

  /** Of the running processes, the one that holds the most rollouts. */
  #mostHolding(): WorkerProcess | undefined {
    const held = ({ owns }: WorkerProcess) => this.journal.heldBy(owns).length;
    return this.#processes.filter((process) => process.running).sort((a, b) => held(b) - held(a))[0];
  }

  /** Number of rollouts that the process holds that would be stopped. */
  #holding(): number {
    const process = this.#mostHolding();
    return process === undefined ? 0 : this.journal.heldBy(process.owns).length;
  }

  /** Whether the workers have found nothing more to do. */
  #isOver(): boolean {
    return this.#processes.every((process) => !process.running);
  }

  async #until(what: string, completed: number): Promise<void> {
    const all = this.#plan.groups * this.#plan.groupSize;
    await this.#when(what, () => this.journal.completed >= Math.min(completed, all * 0.9));
  }

  async #when(what: string, isSo: () => boolean): Promise<void> {
    const deadline = performance.now() + 60_000;
    while (!isSo()) {
      if (performance.now() > deadline)
        throw new Error(
          `waited a minute until ${what}: ${this.journal.completed} are done; ${JSON.stringify(this.journal.of('surprise').slice(0, 5))}`,
        );
      await delay(5);
    }
  }

  [Symbol.dispose](): void {
    for (const process of this.#processes) if (process.running) process.signal('SIGKILL');
  }
}

/** Rollouts that are missing, or were not completed exactly once, and missing turns. */
const LOSSES = new Set(['no sibling is lost', 'completed exactly once', 'no turn is lost']);

function figuresOf(
  seed: number,
  plan: ClaimsPlan,
  trial: Trial,
  { rollouts }: StoredRollouts,
  violations: readonly Violation[],
): Figures {
  const { journal, faultCounts, began } = trial;
  const attempts = rollouts.reduce((sum, rollout) => sum + rollout.attempts.length, 0);
  return {
    seed,
    workers: plan.processes * plan.workersEach,
    servers: plan.servers ?? 1,
    rollouts: rollouts.length,
    'completed once': rollouts.filter(({ status }) => status === 'COMPLETED').length,
    lost: violations.filter(({ rule }) => LOSSES.has(rule)).length,
    attempts,
    ...faultCounts,
    'verbs refused with LEASE_LOST': journal.of('lost').length,
    'given back': journal.of('released').length,
    'turns checked': rollouts.flatMap((rollout) => rollout.attempts).reduce((sum, { marks }) => sum + marks.length, 0),
    seconds: Math.round((performance.now() - began) / 1000),
  };
}
