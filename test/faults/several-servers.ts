import { setTimeout as delay } from 'node:timers/promises';
import type { Figures } from './figures.ts';
import { checkHistory, unknownButStored, type Violation } from './history/check.ts';
import { Load } from './history/load.ts';
import { collectStored } from './history/stored.ts';
import { createDatabaseOf, type Installation, type Instance, startInstances } from './instances.ts';
import { figuresOf } from './kill-server.ts';
import { type Random, seededRandom } from './random.ts';
import { spawnMergingServer } from './spawn-merging.ts';

export interface SeveralServersOutcome {
  readonly violations: readonly Violation[];
  /** Errors that no fault explains. */
  readonly surprises: readonly string[];
  readonly faultCounts: FaultCounts;
  readonly figures: Figures;
}

/** Writers, readers and followers of 8 branches use several servers at random, which get faults in turn. */
export async function injectFaultsIntoServers(
  installation: Installation,
  rounds: number,
): Promise<SeveralServersOutcome> {
  const random = seededRandom();
  await using database = await createDatabaseOf(installation);
  await using stack = new AsyncDisposableStack();
  const start = () => spawnMergingServer({ database: database.url });
  const instances = await startInstances(installation, start, stack);
  using load = await Load.start({
    addresses: instances.map(({ proxy }) => proxy.url),
    random,
    rawWriters: 2,
    readers: 4,
    followers: 2,
    stepsALife: [30, 300],
    silenceMs: 1_500,
  });
  const faultCounts = {
    cuts: 0,
    'late connections': 0,
    'late bytes': 0,
    'stopped servers': 0,
    'taken over while stopped': 0,
  };
  for (let round = 0; round < rounds; round += 1) {
    await load.moreAcks(random.between(20, 150));
    await FAULTS[round % FAULTS.length]!(random.pick(instances), load, random, faultCounts);
  }
  await load.moreAcks(100);
  await load.finish();
  const { history } = load;
  const stored = await collectStored(load.client, database);
  const violations = checkHistory(history, stored);
  const figures = {
    seed: random.seed,
    rounds,
    ...faultCounts,
    ...figuresOf(history, violations),
    'unacked but stored': history.replayedStored + unknownButStored(history, stored),
    'fenced streams': history.streamEnds.get('WRITER_FENCED') ?? 0,
  };
  return { violations, surprises: history.surprises, faultCounts, figures };
}

type FaultCounts = Record<
  'cuts' | 'late connections' | 'late bytes' | 'stopped servers' | 'taken over while stopped',
  number
>;
type InjectFault = (instance: Instance, load: Load, random: Random, faultCounts: FaultCounts) => Promise<void>;

/** Clients lose all their connections to a server. */
const cut: InjectFault = async ({ proxy }, _load, _random, faultCounts) => {
  proxy.cut();
  faultCounts.cuts += 1;
};

/**
 * Frames of clients are held back; the clients give up and take over through another server; then the frames reach
 * the first server.
 */
const late: InjectFault = async ({ proxy }, load, random, faultCounts) => {
  proxy.hold();
  await delay(random.between(10, 60));
  faultCounts['late connections'] += proxy.open;
  proxy.cutClients();
  await load.moreGrants(random.between(4, 12), 3_000);
  const before = proxy.delivered('toServer');
  await proxy.release();
  faultCounts['late bytes'] += proxy.delivered('toServer') - before;
};

/** Stops a server at any point of its work, and continues it. */
const standStill: InjectFault = async ({ server }, load, random, faultCounts) => {
  const grants = load.history.grants.length;
  server.signal('SIGSTOP');
  try {
    faultCounts['stopped servers'] += 1;
    await load.moreGrants(random.between(4, 12), 2_000);
    faultCounts['taken over while stopped'] += load.history.grants.length - grants;
  } finally {
    server.signal('SIGCONT');
  }
};

const FAULTS = [late, standStill, cut];
