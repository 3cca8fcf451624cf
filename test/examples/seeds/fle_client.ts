/**
 * FLE's database client as its document shows it, implemented with Anabranch: each call is made as docs/coming-from.md
 * describes.
 */
import { Code, ConnectError } from '@connectrpc/connect';
import type { Step, Trajectory } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, readSteps } from '../../../src/client/index.ts';

export interface Checkpoint {
  readonly stepNumber: number;
  readonly agentCode: string;
  readonly environmentFeedback: string;
  readonly gameState: string;
}

export class FleClient {
  readonly #client: AnabranchClient;

  constructor(client: AnabranchClient) {
    this.#client = client;
  }

  async createTrajectory(taskId: string, metadata: object): Promise<string> {
    const metadataJson = JSON.stringify(metadata);
    const { trajectory } = await this.#client.trajectories.createTrajectory({ taskId, metadataJson, root: {} });
    return trajectory?.id ?? '';
  }

  async saveCheckpoint(trajectoryId: string, checkpoint: Checkpoint): Promise<void> {
    const { gameState, ...step } = checkpoint;
    await this.#append(trajectoryId, step, [{ name: 'env', data: new TextEncoder().encode(gameState) }]);
  }

  async saveStep(trajectoryId: string, step: Omit<Checkpoint, 'gameState'>): Promise<void> {
    await this.#append(trajectoryId, step, []);
  }

  async getTrajectory(trajectoryId: string): Promise<Trajectory> {
    const { trajectory } = await this.#client.trajectories.getTrajectory({ trajectoryId });
    if (trajectory === undefined) throw new Error('an answer without a trajectory');
    return trajectory;
  }

  getAllTrajectories(): Promise<Trajectory[]> {
    return this.#list('');
  }

  getTaskTrajectories(taskId: string): Promise<Trajectory[]> {
    return this.#list(taskId);
  }

  /** In order, and without the root, which FLE did not have. */
  async getTrajectorySteps(trajectoryId: string): Promise<Step[]> {
    const steps: Step[] = [];
    for await (const { step } of readSteps(this.#client, { trajectoryId, startStepNumber: 1n })) steps.push(step);
    return steps;
  }

  async getCheckpoint(trajectoryId: string, stepNumber: number): Promise<Checkpoint> {
    const { step } = await this.#client.trajectories.getCheckpoint({ trajectoryId, stepNumber: BigInt(stepNumber) });
    return checkpointOf(step);
  }

  async getLatestCheckpoint(trajectoryId: string): Promise<Checkpoint> {
    const { step } = await this.#client.trajectories.getCheckpoint({ trajectoryId });
    return checkpointOf(step);
  }

  async countSteps(trajectoryId: string): Promise<number> {
    return Number((await this.getTrajectory(trajectoryId)).nextStepNumber) - 1;
  }

  async trajectoryExists(trajectoryId: string): Promise<boolean> {
    try {
      await this.getTrajectory(trajectoryId);
      return true;
    } catch (error) {
      if (ConnectError.from(error).code === Code.NotFound) return false;
      throw error;
    }
  }

  async deleteTrajectory(trajectoryId: string): Promise<void> {
    await this.#client.trajectories.deleteTrajectory({ trajectoryId });
  }

  async #append(
    trajectoryId: string,
    { stepNumber, agentCode, environmentFeedback }: Omit<Checkpoint, 'gameState'>,
    states: { name: string; data: Uint8Array<ArrayBuffer> }[],
  ): Promise<void> {
    await this.#client.trajectories.appendStep({
      trajectoryId,
      step: {
        stepNumber: BigInt(stepNumber),
        actions: [{ type: 'code', content: { text: agentCode } }],
        observations: [{ type: 'response', content: { text: environmentFeedback } }],
        states,
      },
    });
  }

  async #list(taskId: string): Promise<Trajectory[]> {
    const all: Trajectory[] = [];
    for (let pageToken: string | undefined = ''; pageToken !== undefined; ) {
      const page = await this.#client.trajectories.listTrajectories({ taskId, pageToken, pageSize: 2 });
      all.push(...page.trajectories);
      pageToken = page.nextPageToken === '' ? undefined : page.nextPageToken;
    }
    return all;
  }
}

function checkpointOf(step: Step | undefined): Checkpoint {
  return {
    stepNumber: Number(step?.stepNumber),
    agentCode: step?.actions[0]?.content?.text ?? '',
    environmentFeedback: step?.observations[0]?.content?.text ?? '',
    gameState: new TextDecoder().decode(step?.states[0]?.data),
  };
}
