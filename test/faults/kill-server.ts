import { setTimeout as delay } from 'node:timers/promises';
import { createDatabase, type Engine } from '../support/database.ts';
import { type SpawnedServer, spawnServer } from '../support/spawned-server.ts';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.ts';
import { type Figures, reportFigures } from './figures.ts';
import { checkHistory, unknownButStored, type Violation } from './history/check.ts';
import type { History } from './history/history.ts';
import { Load, type LoadOptions } from './history/load.ts';
import { collectStored } from './history/stored.ts';
import { type Random, seededRandom } from './random.ts';

export interface KillPlan {
  readonly engine: Engine;
  readonly kills: number;
  /** Another program than the service, with more environment. */
  readonly main?: string;
  readonly env?: Readonly<Record<string, string>>;
  /** Another load than 16 writers over 8 branches. */
  readonly load?: Partial<LoadOptions>;
  /** So many streams are granted between two kills, which makes for take-overs. Default: 4. */
  readonly grants?: number;
  /** How long bytes are on their way, in ms. Default: 8. */
  readonly wayMs?: number;
}

export interface KillOutcome {
  readonly violations: readonly Violation[];
  /** What no kill explains. */
  readonly surprises: readonly string[];
  /** Steps that were sent and not answered when the kill came that met the fewest. */
  readonly leastInFlight: number;
  /** Steps without an ack that were stored all the same. */
  readonly unackedButStored: number;
  /** Those of them that a client helper sent again. */
  readonly replayedStored: number;
  readonly figures: Figures;
}

/** So that some acks are always on their way when the server dies. */
const WAY_MS = 8;

/** SIGKILLs the server again and again while 16 writers of 8 branches are in mid-stream, and holds what is stored against what they were told. */
export async function killServer(plan: KillPlan): Promise<KillOutcome> {
  const random = seededRandom();
  const { kills } = plan;
  await using database = await createDatabase(plan.engine);
  const start = () => spawnServer({ ...plan, database: database.url });
  let server = await start();
  await using proxy = await startTcpProxy(server);
  using load = await Load.start({ ...plan.load, addresses: [proxy.url], random });
  const { history } = load;
  proxy.setLatency(plan.wayMs ?? WAY_MS);
  try {
    let [leastInFlight, slowestStart] = [Number.POSITIVE_INFINITY, 0];
    for (let kill = 0; kill < kills; kill += 1) {
      leastInFlight = Math.min(leastInFlight, await killInMidStream(plan, server, proxy, load, random));
      const began = performance.now();
      server = await start();
      proxy.retarget(server);
      slowestStart = Math.max(slowestStart, Math.round(performance.now() - began));
    }
    await load.moreAcks(100);
    await load.finish();
    const stored = await collectStored(load.client, database);
    const violations = checkHistory(history, stored);
    const unackedButStored = history.replayedStored + unknownButStored(history, stored);
    const { surprises, replayedStored } = history;
    const figures = {
      seed: random.seed,
      kills,
      ...figuresOf(history, violations),
      'least in flight at a kill': leastInFlight,
      'unacked but stored': unackedButStored,
      'of these sent again': replayedStored,
      'slowest start, ms': slowestStart,
    };
    return { violations, surprises, leastInFlight, unackedButStored, replayedStored, figures };
  } finally {
    load.close();
    await server.kill();
  }
}

/** The server dies, and what it said last dies with it on its way. Returns how many steps had no answer. */
async function killInMidStream(
  { grants = 4 }: KillPlan,
  server: SpawnedServer,
  proxy: TcpProxy,
  load: Load,
  random: Random,
): Promise<number> {
  await load.moreGrants(grants, 4_000);
  await load.moreAcks(random.between(100, 600));
  await delay(random.between(0, 20)); // anywhere in the life of a commit
  const killed = server.kill();
  proxy.cut();
  const { inFlight } = load.history;
  await killed;
  return inFlight;
}

/** What a history came to. */
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

export async function reportKills(plan: KillPlan, { figures }: KillOutcome): Promise<void> {
  await reportFigures(`kill -9 of the server on ${plan.engine}`, figures);
}
