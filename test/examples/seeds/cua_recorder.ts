/** CUA's recorder of one rollout, implemented with Anabranch: each call is made as docs/coming-from.md describes. */
import { timestampNow } from '@bufbuild/protobuf/wkt';
import type { Claim, ClaimRolloutsRequest } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { type AnabranchClient, openWriter, type TrajectoryWriter } from '../../../src/client/index.ts';

export interface Turn {
  readonly said: string;
  readonly tool: string;
  readonly args: object;
  readonly tokens: readonly number[];
  readonly reward?: number;
  readonly done?: boolean;
  readonly screenshot: Uint8Array<ArrayBuffer>;
}

export class RolloutRecorder {
  readonly #client: AnabranchClient;
  readonly #claim: Claim;
  readonly #writer: TrajectoryWriter;

  private constructor(client: AnabranchClient, claim: Claim, writer: TrajectoryWriter) {
    this.#client = client;
    this.#claim = claim;
    this.#writer = writer;
  }

  /** The next matching rollout, with the attempt that every later call names; undefined if nothing is left. */
  static async start(
    client: AnabranchClient,
    what: Partial<Pick<ClaimRolloutsRequest, 'stageId' | 'labels' | 'requestId'>>,
    workerId: string,
  ): Promise<RolloutRecorder | undefined> {
    const { claims } = await client.rollouts.claimRollouts({ ...what, workerId });
    const [claim] = claims;
    if (claim?.trajectory === undefined) return undefined;
    const { id: trajectoryId, uid } = claim.trajectory;
    const writer = await openWriter(client, { trajectoryId, uid });
    await writer.append({ observations: [{ type: 'task', content: { text: claim.task?.description ?? '' } }] });
    return new RolloutRecorder(client, claim, writer);
  }

  get token(): { readonly rolloutId: string; readonly attempt: number } {
    return { rolloutId: this.#claim.rollout?.id ?? '', attempt: this.#claim.rollout?.attempt ?? 0 };
  }

  get trajectoryId(): string {
    return this.#writer.trajectoryId;
  }

  /** `env_creation` and `agent_init` are phases; the task itself starts by a verb. */
  async updateStatus(phase: 'env_creation' | 'agent_init' | 'task_execution'): Promise<void> {
    if (phase === 'task_execution') await this.#client.rollouts.startRollout({ ...this.token, phase });
    else await this.#client.rollouts.updateRollout({ ...this.token, updateMask: { paths: ['phase'] }, phase });
  }

  async update(metrics: { [name: string]: number }, environmentIds: string[]): Promise<void> {
    const updateMask = { paths: ['metrics', 'timings', 'environment_ids'] };
    const timings = { env_creation: { endTime: timestampNow() } };
    await this.#client.rollouts.updateRollout({ ...this.token, updateMask, metrics, timings, environmentIds });
  }

  async recordTurn({ said, tool, args, tokens, reward, done = false, screenshot }: Turn): Promise<void> {
    await this.#writer.append({
      actions: [
        { type: 'text', content: { text: said }, tokenIds: [...tokens] },
        { type: 'tool_call', name: tool, callId: 'call-1', content: { json: JSON.stringify(args) } },
      ],
      observations: [
        { type: 'screenshot_after', callId: 'call-1', content: { data: screenshot, mediaType: 'image/png' } },
      ],
      reward,
      terminated: done,
    });
  }

  async recordValidation(success: boolean, actualResult: string): Promise<void> {
    const [name = ''] = Object.keys(this.#claim.task?.validators ?? {});
    await this.#client.rollouts.recordValidation({ ...this.token, validation: { name, success, actualResult } });
  }

  /** The end of the trajectory is named, so that no turn in transit is cut off. */
  async complete(success: boolean): Promise<void> {
    await this.#writer.flush();
    await this.#client.rollouts.completeRollout({
      ...this.token,
      result: { taskCompleted: true, agentReportedSuccess: true, success },
      expectedNextStepNumber: this.#writer.nextStepNumber,
    });
    await this.#writer.close();
  }

  async fail(message: string): Promise<void> {
    await this.#writer.close();
    await this.#client.rollouts.failRollout({ ...this.token, message });
  }

  /** The process has crashed; it does not release its lease. */
  async leave(): Promise<void> {
    await this.#writer.close();
  }
}
