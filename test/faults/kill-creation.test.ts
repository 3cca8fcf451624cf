import { randomUUID } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { type AnabranchClient, connectClient, openWriter, readSteps } from '../../src/client/index.ts';
import { type OutsideSql, outsideSql } from '../store/sql.ts';
import { ENGINES } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { requireIntact } from '../support/intact.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';
import { reportFigures } from './figures.ts';
import { seededRandom } from './random.ts';
import { spawnMergingServer } from './spawn-merging.ts';
import { requireIntactDatabase } from './stopped-database.ts';

const KILLS = dose(1, 8);
/** Latency of the network in ms. */
const WAY_MS = 12;
const WRITERS = 16;
const STEPS = 3;

/** A trajectory that a writer has created, with all its steps acked. */
interface Made {
  readonly trajectoryId: string;
  readonly uid: string;
  /** The trajectory that it branches off at its last step. */
  readonly parent: Made | undefined;
  readonly rewards: readonly number[];
}

class Creators {
  readonly made: Made[] = [];
  readonly surprises: unknown[] = [];
  /** Creations that were answered. */
  answered = 0;
  /** Creations whose answer was lost after their commit. */
  replayed = 0;
  #stopping = false;
  #wake: (() => void) | undefined;
  readonly #client: AnabranchClient;
  readonly #running: Promise<unknown>;

  constructor(client: AnabranchClient) {
    this.#client = client;
    this.#running = Promise.all(Array.from({ length: WRITERS }, (_, i) => this.#create(i)));
  }

  /** Resolves when this many more trajectories are created, or when a writer has failed. */
  async progress(count: number): Promise<void> {
    for (const end = this.made.length + count; this.made.length < end && this.surprises.length === 0; ) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    await this.#running;
  }

  /** Creates one trajectory after another, alternately a root and a branch of it. */
  async #create(writer: number): Promise<void> {
    let parent: Made | undefined;
    try {
      for (let i = 0; !this.#stopping; i += 1) {
        const made = await this.#createOne(writer * 1e6 + i, parent);
        this.made.push(made);
        this.#wake?.();
        parent = parent === undefined ? made : undefined;
      }
    } catch (error) {
      this.surprises.push(error);
      this.#wake?.();
    }
  }

  async #createOne(name: number, parent: Made | undefined): Promise<Made> {
    const trajectoryId = randomUUID();
    const create =
      parent === undefined
        ? { trajectory: { name: `${name}` } }
        : { branch: { trajectoryId: parent.trajectoryId, stepNumber: BigInt(parent.rewards.length - 1) } };
    const writer = await openWriter(this.#client, { trajectoryId, create, giveUpAfterMs: 60_000 });
    this.answered += 1;
    if (writer.epoch > 1n) this.replayed += 1;
    const rewards = Array.from({ length: STEPS }, (_, i) => name + i / 10);
    await Promise.all(rewards.map((reward) => writer.append({ reward })));
    await writer.close();
    return { trajectoryId, uid: writer.uid, parent, rewards: [...(parent?.rewards ?? []), ...rewards] };
  }
}

describe.each(ENGINES)('kill -9 of the server during creations by open on %s', (engine) => {
  it('W1, W12, D1: no kill loses or duplicates a trajectory, or a step of it', async () => {
    const random = seededRandom();
    await using database = await createMigratedDatabase(engine);
    const sql = await outsideSql(database);
    let server = await spawnMergingServer({ database: database.url });
    await using proxy = await startTcpProxy(server);
    // Answers are in transit whenever the server is killed.
    proxy.setLatency(WAY_MS);
    const client = connectClient({ address: proxy.url });
    const creators = new Creators(client);
    let kills = 0;
    // A kill between a creation and its answer shows when the writer has connected again.
    for (; kills < KILLS || (creators.replayed === 0 && kills < 10 * KILLS); kills += 1) {
      // All writers have connected again, and create trajectories at full speed.
      await creators.progress(2 * WRITERS);
      // Those that have just finished one create the next one, whose answer is held back: the kill loses it.
      proxy.mute();
      await untilUnanswered(creators, sql);
      await delay(random.between(0, 30));
      const killed = server.kill();
      proxy.cut();
      await proxy.release();
      await killed;
      await requireIntactDatabase(database);
      server = await spawnMergingServer({ database: database.url });
      proxy.retarget(server);
      await creators.progress(2 * WRITERS);
    }
    await creators.stop();
    proxy.setLatency(0);
    const { made, replayed, surprises } = creators;
    expect(surprises).toEqual([]);
    await requireIntact(client);
    for (const { trajectoryId, uid, rewards, parent } of made) {
      const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId });
      expect(trajectory).toMatchObject({ uid, parentId: parent?.trajectoryId ?? '' });
      const stored: (number | undefined)[] = [];
      for await (const { step } of readSteps(client, { trajectoryId })) stored.push(step.reward);
      expect(stored).toEqual(rewards);
    }
    reportFigures(`kill -9 during creations by open on ${engine}`, {
      kills,
      trajectories: made.length,
      'creations sent again after their commit': replayed,
      'lost or duplicated': 0,
    });
    expect(replayed, 'no kill fell between a creation and its answer').toBeGreaterThan(0);
    client.close();
    await sql.close();
    await server.kill();
  });
});

/** Resolves when a creation is committed whose answer is held back, or after a second: perhaps nobody was creating. */
async function untilUnanswered(creators: Creators, sql: OutsideSql): Promise<void> {
  // Answers that had passed the network are read first.
  await delay(20);
  for (const deadline = performance.now() + 1_000; performance.now() < deadline; await delay(2)) {
    const [row] = await sql.rows('select count(*) as committed from trajectories');
    if (Number(row?.committed) > creators.answered) return;
  }
}
