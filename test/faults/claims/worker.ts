/**
 * A process of workers that claim rollouts, take their turns and complete them, until there is nothing more. Others
 * kill and stop it at any time.
 */
import { randomUUID } from 'node:crypto';
import process from 'node:process';
import { setTimeout as delay } from 'node:timers/promises';
import { ConnectError } from '@connectrpc/connect';
import type { Claim } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { type AnabranchClient, connectClient, openWriter, reasonOf } from '../../../src/client/index.ts';
import { type Random, seededRandom } from '../random.ts';
import { type Entry, GIVEN_BACK, stepMark, type Token } from './journal.ts';

export interface WorkerPlan {
  /** Addresses of the servers: any of them may be used for any call. */
  readonly addresses: readonly string[];
  /** Workers are named `NAME-1`, `NAME-2`, … */
  readonly name: string;
  readonly workers: number;
  readonly stageId: string;
  readonly leaseSeconds: number;
  readonly seed: number;
}

const MOST_TURNS = 4;
/** Maximal duration of a turn in ms: the thinking time of an agent. */
const TURN_MS = 40;
const CALL = { timeoutMs: 5_000 };
const GIVE_UP_MS = 60_000;

/** Expected errors of a call while servers die. Everything else but LEASE_LOST is unexpected. */
const PASSING = new Set(['DATABASE_UNAVAILABLE', 'SERVER_DRAINING', 'DEADLINE_EXCEEDED', 'CANCELLED']);

class Worker {
  readonly #plan: WorkerPlan;
  readonly #name: string;
  readonly #clients: readonly AnabranchClient[];
  readonly #random: Random;

  constructor(plan: WorkerPlan, clients: readonly AnabranchClient[], place: number) {
    this.#plan = plan;
    this.#name = `${plan.name}-${place}`;
    this.#clients = clients;
    this.#random = seededRandom(plan.seed * 1000 + place);
  }

  async work(): Promise<void> {
    for (;;) {
      const { claims, drained } = await this.#claim();
      if (claims.length === 0 && drained) return;
      await Promise.all(claims.map((claim) => this.#attend(claim)));
    }
  }

  /** Repeats the same request until it is answered: a claim whose answer was lost is not claimed twice (ID1). */
  async #claim() {
    const { stageId, leaseSeconds } = this.#plan;
    const request = {
      stageId,
      workerId: this.#name,
      maxRollouts: this.#random.between(1, 2),
      leaseDuration: { seconds: BigInt(leaseSeconds) },
      wait: { nanos: 500_000_000 },
      requestId: randomUUID(),
    };
    const answer = await this.#insist((client) => client.rollouts.claimRollouts(request, CALL));
    for (const claim of answer.claims) {
      this.#tell({ what: 'claimed', ...tokenOf(claim), trajectory: claim.trajectory!.id });
    }
    return answer;
  }

  async #attend(claim: Claim): Promise<void> {
    const token = tokenOf(claim);
    const rolloutId = token.rollout;
    const { attempt } = token;
    try {
      await this.#insist((client) => client.rollouts.startRollout({ rolloutId, attempt }, CALL));
      const steps = await this.#takeTurns(claim, token);
      if (steps === undefined) return;
      this.#tell({ what: 'completing', ...token, steps });
      const result = { reward: steps, success: this.#random.next() < 0.5 };
      const request = { rolloutId, attempt, expectedNextStepNumber: BigInt(steps), result };
      await this.#insist((client) => client.rollouts.completeRollout(request, CALL));
      this.#tell({ what: 'completed', ...token });
    } catch (error) {
      await this.#judge(error, token);
    }
  }

  /** Returns the number of steps of its trajectory; undefined if it was released. */
  async #takeTurns(claim: Claim, token: Token): Promise<number | undefined> {
    const { id: trajectoryId, uid } = claim.trajectory!;
    const client = this.#random.pick(this.#clients);
    const writer = await openWriter(client, { trajectoryId, uid, silenceMs: 3_000, giveUpAfterMs: GIVE_UP_MS });
    const turns = this.#random.between(1, MOST_TURNS);
    const givesBack = this.#random.next() < 0.04;
    try {
      for (let step = 0; step <= turns; step += 1) {
        await writer.append({ infoJson: stepMark(token, step), ...(step === 0 ? {} : { reward: 1 }) });
        await delay(this.#random.between(0, TURN_MS));
      }
    } finally {
      await writer.close();
    }
    if (!givesBack) return turns + 1;
    const request = { rolloutId: token.rollout, attempt: token.attempt, message: GIVEN_BACK };
    await this.#insist((any) => any.rollouts.releaseRollout(request, CALL));
    this.#tell({ what: 'released', ...token });
    return undefined;
  }

  /**
   * A writer notices by a sealed trajectory that another worker has its rollout; the error of the service must say so.
   */
  async #judge(error: unknown, token: Token): Promise<void> {
    const reason = reasonOf(error);
    if (reason === 'LEASE_LOST') return this.#tell({ what: 'lost', ...token });
    if (reason !== 'TRAJECTORY_SEALED')
      return this.#tell({ what: 'surprise', text: `${JSON.stringify(token)}: ${error}` });
    const { rollout: rolloutId, attempt } = token;
    try {
      await this.#insist((client) => client.rollouts.completeRollout({ rolloutId, attempt }, CALL));
      this.#tell({
        what: 'surprise',
        text: `${JSON.stringify(token)} was completed, though its trajectory was sealed`,
      });
    } catch (refusal) {
      const lost = reasonOf(refusal) === 'LEASE_LOST';
      this.#tell(
        lost ? { what: 'lost', ...token } : { what: 'surprise', text: `${JSON.stringify(token)}: ${refusal}` },
      );
    }
  }

  /** Repeats until it is answered, by any server. */
  async #insist<T>(call: (client: AnabranchClient) => Promise<T>): Promise<T> {
    const deadline = performance.now() + GIVE_UP_MS;
    for (;;) {
      try {
        return await call(this.#random.pick(this.#clients));
      } catch (error) {
        const reason = reasonOf(error);
        const passing = reason === undefined ? error instanceof ConnectError : PASSING.has(reason);
        if (!passing || performance.now() > deadline) throw error;
        await delay(this.#random.between(20, 200));
      }
    }
  }

  #tell(report: Report): void {
    // Writes to a pipe are synchronous: a killed process has reported everything it did.
    process.stdout.write(`${JSON.stringify({ ...report, worker: this.#name })}\n`);
  }
}

type Report = Entry extends infer E ? (E extends unknown ? Omit<E, 'worker'> : never) : never;

function tokenOf({ rollout }: Claim): Token {
  return { rollout: rollout!.id, attempt: rollout!.attempt };
}

const plan = JSON.parse(process.argv[2] ?? '') as WorkerPlan;
const clients = plan.addresses.map((address) => connectClient({ address }));
await Promise.all(Array.from({ length: plan.workers }, (_, i) => new Worker(plan, clients, i + 1).work()));
for (const client of clients) client.close();
