import { Code, ConnectError } from '@connectrpc/connect';
import { expect } from 'vitest';
import { BadRequestSchema, ErrorInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import type { Reason } from '../../src/domain/errors.ts';
import { AppendCall } from './append-call.ts';
import type { WireClient } from './story.ts';

/** A call that must be refused, and the expected error. */
export interface BadCall<Scene> {
  readonly what: string;
  readonly call: (scene: Scene) => Promise<unknown>;
  readonly code: Code;
  readonly reason: Reason;
  /**
   * The field that the violations name. The message names it too, unless it contains a value that identifies the field.
   */
  readonly field?: string;
  readonly metadata?: Record<string, unknown>;
  /** Text that the message must contain. */
  readonly text?: string;
}

export const INVALID = { code: Code.InvalidArgument, reason: 'INVALID_REQUEST' } as const;

export async function expectRefused(call: Promise<unknown>, wanted: Omit<BadCall<never>, 'what' | 'call'>) {
  const error = await call.then(
    () => Promise.reject(new Error('the call was expected to be refused, and succeeded')),
    (thrown: unknown) => ConnectError.from(thrown),
  );
  const { code, reason, field, metadata = {}, text = '' } = wanted;
  const infos = error.findDetails(ErrorInfoSchema);
  expect(infos, error.message).toHaveLength(1);
  expect({ code: Code[error.code], reason: infos[0]!.reason }, error.message).toEqual({ code: Code[code], reason });
  expect(infos[0]!.metadata).toMatchObject(metadata);
  expect(error.rawMessage).toContain(text);
  if (field === undefined) return;
  const fields = error.findDetails(BadRequestSchema)[0]?.fieldViolations.map((violation) => violation.field);
  expect(fields, error.message).toContain(field);
  if (reason === 'INVALID_REQUEST' || field.includes('[')) expect(error.rawMessage).toContain(field);
}

/** A stream that appends on the connection of invalid calls, after each of them. They must not affect it. */
export class Bystander {
  readonly #call: AppendCall;
  #next = 0n;

  private constructor(call: AppendCall) {
    this.#call = call;
  }

  static async open({ trajectories }: Pick<WireClient, 'trajectories'>): Promise<Bystander> {
    const { trajectory } = await trajectories.createTrajectory({});
    const { call } = await AppendCall.open(trajectories, { trajectoryId: trajectory!.id, writerId: 'bystander' });
    return new Bystander(call);
  }

  async goesOn(): Promise<void> {
    this.#call.send({ steps: [{ stepNumber: this.#next, reward: Number(this.#next) }] });
    this.#next += 1n;
    expect((await this.#call.acked(this.#next)).nextStepNumber).toBe(this.#next);
  }

  close(): Promise<void> {
    return this.#call.close();
  }
}
