import { setTimeout as delay } from 'node:timers/promises';
import { outsideSql } from '../store/sql.ts';
import type { Figures } from './figures.ts';
import { checkHistory, unknownButStored, type Violation } from './history/check.ts';
import type { History } from './history/history.ts';
import { Load, type LoadOptions } from './history/load.ts';
import { collectStored } from './history/stored.ts';
import { createDatabaseOf, type Installation, type Instance, startInstances } from './instances.ts';
import { type Random, seededRandom } from './random.ts';
import { countMergedRows, spawnMergingServer } from './spawn-merging.ts';
import { requireIntactDatabase } from './stopped-database.ts';

export interface KillPlan extends Installation {
  readonly kills: number;
  /**
   * Acks are held back before each kill until a helper has sent steps again that were stored. Kills go on, up to ten
   * times as many, until one has. Of several servers, others mostly take over before.
   */
  readonly untilReplayed?: boolean;
  /** Another program than the service that merges all the time, with additional environment. */
  readonly program?: string;
  readonly env?: Readonly<Record<string, string>>;
  /** Another load than 16 writers over 8 branches. */
  readonly load?: Partial<LoadOptions>;
  /** This many streams are granted between two kills, which causes take-overs. Default: 4. */
  readonly grants?: number;
  /** Latency of the network in ms. Default: 8. */
  readonly wayMs?: number;
}

export interface KillOutcome {
  readonly violations: readonly Violation[];
  /** Errors that no kill explains. */
  readonly surprises: readonly string[];
  /** Unacked steps at the kill that hit the fewest. */
  readonly leastInFlight: number;
  /** Unacked steps that were stored all the same. */
  readonly unackedButStored: number;
  /** Those of them that a client helper sent again. */
  readonly replayedStored: number;
  /** Rows of steps that were merged. */
  readonly mergedRows: number;
  readonly figures: Figures;
}

/** So that some acks are always in transit when the server is killed. */
const WAY_MS = 8;
/** Several commits, on an idle machine. On a busy one, until some acks are held back. */
const MUTED_MS = 100;
const [HELD_ACK_BYTES, PATIENT_MS] = [400, 3_000];

/**
 * Kills one of the servers repeatedly while 16 writers of 8 branches append through any of them, and compares the
 * stored steps with the answers.
 */
export async function killServer(plan: KillPlan): Promise<KillOutcome> {
  const random = seededRandom();
  let kills = 0;
  await using database = await createDatabaseOf(plan);
  await using stack = new AsyncDisposableStack();
  const start = () => spawnMergingServer({ ...plan, database: database.url });
  const instances = await startInstances(plan, start, stack);
  using load = await Load.start({ ...plan.load, addresses: instances.map(({ proxy }) => proxy.url), random });
  const { history } = load;
  for (const { proxy } of instances) proxy.setLatency(plan.wayMs ?? WAY_MS);
  let [leastInFlight, slowestStart] = [Number.POSITIVE_INFINITY, 0];
  let lostAcks = false;
  const isMissed = () => plan.untilReplayed === true && history.replayedStored === 0;
  // Of several servers, one may have no writers.
  const isVain = () => isMissed() || (instances.length > 1 && !lostAcks);
  for (; kills < plan.kills || (isVain() && kills < 10 * plan.kills); kills += 1) {
    const isMuted = isMissed() || instances.length > 1;
    const { instance, ...killed } = await killInMidStream(plan, { instances, load, random, isMuted });
    leastInFlight = Math.min(leastInFlight, killed.inFlight);
    lostAcks ||= killed.lostAcks;
    // Other programs than the service are made to lose or damage something.
    if (plan.program === undefined) await requireIntactDatabase(database);
    const began = performance.now();
    await instance.restart();
    slowestStart = Math.max(slowestStart, Math.round(performance.now() - began));
  }
  await load.moreAcks(100);
  await load.finish();
  const stored = await collectStored(load.client, database);
  const sql = await outsideSql(database);
  const mergedRows = await countMergedRows(sql).finally(() => sql.close());
  const violations = checkHistory(history, stored);
  const unackedButStored = history.replayedStored + unknownButStored(history, stored);
  const { replayedStored, surprises } = history;
  const figures = {
    seed: random.seed,
    servers: instances.length,
    kills,
    ...figuresOf(history, violations),
    'least in flight at a kill': leastInFlight,
    'unacked but stored': unackedButStored,
    'of these sent again': replayedStored,
    'merged rows': mergedRows,
    'slowest start, ms': slowestStart,
  };
  return { violations, surprises, leastInFlight, unackedButStored, replayedStored, mergedRows, figures };
}

interface KillScene {
  readonly instances: readonly Instance[];
  readonly load: Load;
  readonly random: Random;
  /** Whether the server's answers are held back for a moment before the kill, which loses them. */
  readonly isMuted: boolean;
}

interface Killed {
  /** The server that was killed. */
  readonly instance: Instance;
  /** Steps without an answer. */
  readonly inFlight: number;
  /** Whether acks were held back, and are lost. */
  readonly lostAcks: boolean;
}

/** Kills a server that writers use, and loses its last answers in transit. */
async function killInMidStream({ grants = 4 }: KillPlan, scene: KillScene): Promise<Killed> {
  const { instances, load, random, isMuted } = scene;
  await load.moreGrants(grants, 4_000);
  const sentTo = ({ proxy }: Instance) => proxy.delivered('toServer');
  const before = new Map(instances.map((each) => [each, sentTo(each)]));
  await load.moreAcks(random.between(100, 600));
  const received = instances.map((each) => ({ each, bytes: sentTo(each) - before.get(each)! }));
  const most = Math.max(...received.map(({ bytes }) => bytes));
  // Readers and followers send little.
  const instance = random.pick(received.filter(({ bytes }) => bytes >= most / 10)).each;
  if (isMuted) instance.proxy.mute();
  // At any point of a commit, or after some whose acks are lost.
  await delay(random.between(0, 20) + (isMuted ? MUTED_MS : 0));
  const deadline = performance.now() + PATIENT_MS;
  const lostAcks = () => isMuted && instance.proxy.held('toClient') >= HELD_ACK_BYTES;
  while (isMuted && !lostAcks() && performance.now() < deadline) await delay(1);
  // On a busy machine, all writers can be idle for a moment.
  while (load.history.inFlight === 0) await delay(1);
  const dead = instance.kill();
  const killed = { instance, inFlight: load.history.inFlight, lostAcks: lostAcks() };
  await dead;
  if (!isMuted) return killed;
  // The answers that are held back get lost.
  instance.proxy.cutClients();
  await instance.proxy.release();
  return killed;
}

/** The outcome of a history. */
export function figuresOf(history: History, violations: readonly Violation[]): Figures {
  const followed = history.follows.reduce((sum, { got }) => sum + got.length, 0);
  return {
    'acked steps checked': history.acked,
    lost: violations.filter(({ rule }) => rule === 'C1').length,
    'grants checked': history.grants.length,
    'reads checked': history.reads.length,
    'followed steps checked': followed,
    'branches and seals checked': history.branchings.length + history.sealings.length,
  };
}
