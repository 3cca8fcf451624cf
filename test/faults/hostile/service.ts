import { randomUUID } from 'node:crypto';
import { expect } from 'vitest';
import type { Claim } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { StageKind } from '../../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, openWriter, readSteps } from '../../../src/client/index.ts';

/** Rollouts that are queued at a time. */
const GROUP = 2;
const STEPS_OF_ROLLOUT = 3n;
const LEASE = { seconds: 60n };

/** A service of one team, in a namespace of its own: writes, follows and claims at the same time. No call may fail. */
export class Service {
  readonly name: string;
  /** Steps of the trajectory that is followed, and rollouts that are completed. */
  steps = 0n;
  rollouts = 0;
  /** Why streams of writers were lost. */
  readonly cuts: Error[] = [];
  /** The trajectory that is followed. */
  readonly trajectoryId: string = randomUUID();
  readonly stageId: string;
  readonly #client: AnabranchClient;
  readonly #runId: string;
  readonly #trajectories = new Set([this.trajectoryId]);
  readonly #rollouts = new Set<string>();

  private constructor(client: AnabranchClient, name: string, runId: string, stageId: string) {
    this.#client = client;
    this.name = name;
    this.#runId = runId;
    this.stageId = stageId;
  }

  static async start(client: AnabranchClient, name: string): Promise<Service> {
    const { run } = await client.runs.createRun({ name, initialStatus: Status.RUNNING });
    const runId = run!.id;
    const { stage } = await client.runs.getOrCreateStage({ runId, kind: StageKind.TRAIN_STEP, number: 1n });
    return new Service(client, name, runId, stage!.id);
  }

  /** Works until `isOver`. What it reads meanwhile must be what it has written, each once and in order. */
  async work(isOver: () => boolean): Promise<void> {
    const writer = await this.#open(this.trajectoryId, { create: { trajectory: { name: this.name } } });
    const write = async () => {
      for (; !isOver(); this.steps += 1n) await writer.append(this.#step(this.steps));
      await writer.seal(Status.COMPLETED);
    };
    let followed = 0n;
    const follow = async () => {
      for await (const { trajectoryId, step } of readSteps(this.#client, {
        trajectoryId: this.trajectoryId,
        follow: true,
      })) {
        expect([trajectoryId, step.stepNumber, step.infoJson]).toEqual([
          this.trajectoryId,
          followed,
          this.#step(followed).infoJson,
        ]);
        followed += 1n;
      }
    };
    const claim = async () => {
      for (let group = 0n; !isOver(); group += 1n) await this.#playGroup(group);
    };
    await Promise.all([write(), follow(), claim()]);
    expect(followed).toBe(this.steps);
  }

  /** Everything in the namespace must be the own work, complete. */
  async check(): Promise<void> {
    const { trajectories, runs, rollouts } = this.#client;
    expect((await runs.listRuns({})).runs.map(({ run }) => run?.id)).toEqual([this.#runId]);
    const found = new Set<string>();
    for (let pageToken = ''; ; ) {
      const page = await trajectories.listTrajectories({ pageSize: 1000, pageToken });
      for (const { id, status } of page.trajectories) {
        found.add(id);
        expect(status, id).toBe(Status.COMPLETED);
      }
      pageToken = page.nextPageToken;
      if (pageToken === '') break;
    }
    expect(found).toEqual(this.#trajectories);
    for (const trajectoryId of found) {
      let read = 0n;
      for await (const { step } of readSteps(this.#client, { trajectoryId })) {
        expect([step.stepNumber, step.infoJson]).toEqual([read, this.#step(read).infoJson]);
        read += 1n;
      }
      expect(read, trajectoryId).toBe(trajectoryId === this.trajectoryId ? this.steps : STEPS_OF_ROLLOUT);
    }
    for (const rolloutId of this.#rollouts) {
      const { rollout } = await rollouts.getRollout({ rolloutId });
      expect([rollout!.status, rollout!.attempt], rolloutId).toEqual([Status.COMPLETED, 1]);
    }
    expect(this.#rollouts.size).toBe(this.rollouts);
  }

  /** Claims wait before there is anything to claim. */
  async #playGroup(groupNumber: bigint): Promise<void> {
    const { stageId } = this;
    const { rollouts } = this.#client;
    let left = GROUP;
    const play = async () => {
      while (left > 0) {
        const request = {
          stageId,
          workerId: this.name,
          maxRollouts: GROUP,
          leaseDuration: LEASE,
          requestId: randomUUID(),
        };
        const { claims } = await rollouts.claimRollouts({ ...request, wait: { seconds: 10n } });
        left -= claims.length;
        await Promise.all(claims.map((claim) => this.#play(claim)));
      }
    };
    const create = async () => {
      const numbers = Array.from({ length: GROUP }, (_, number) => ({ groupNumber, number: BigInt(number) }));
      await rollouts.createRollouts({ stageId, rollouts: numbers });
    };
    await Promise.all([play(), create()]);
    expect(left).toBe(0);
  }

  async #play({ rollout, trajectory }: Claim): Promise<void> {
    const { id: rolloutId, attempt, runId } = rollout!;
    expect([runId, this.#rollouts.has(rolloutId)]).toEqual([this.#runId, false]);
    this.#rollouts.add(rolloutId);
    this.#trajectories.add(trajectory!.id);
    await this.#client.rollouts.startRollout({ rolloutId, attempt });
    const writer = await this.#open(trajectory!.id);
    for (let step = 0n; step < STEPS_OF_ROLLOUT; step += 1n) await writer.append(this.#step(step));
    await writer.close();
    const expectedNextStepNumber = STEPS_OF_ROLLOUT;
    await this.#client.rollouts.completeRollout({
      rolloutId,
      attempt,
      expectedNextStepNumber,
      result: { success: true },
    });
    this.rollouts += 1;
  }

  #open(trajectoryId: string, more: object = {}) {
    return openWriter(this.#client, {
      ...more,
      trajectoryId,
      onEvent: (event) => {
        if (event.type !== 'opened') this.cuts.push(event.error);
      },
    });
  }

  #step(number: bigint) {
    return { infoJson: JSON.stringify(`${this.name} ${number}`) };
  }
}
