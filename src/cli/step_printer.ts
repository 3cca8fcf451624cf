import { create } from '@bufbuild/protobuf';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { Trajectory } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { OwnedStepSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { AnabranchClient, OwnedStep } from '../client/index.ts';
import { columnsOf, cut, paintFor, printable } from './columns.ts';
import type { CliContext } from './context.ts';
import { messageJson } from './json_text.ts';
import { FIRST_ANSWER, write } from './server_access.ts';
import { statusName } from './status.ts';
import { stepLine } from './step_line.ts';

export async function getTrajectory(client: AnabranchClient, trajectoryId: string): Promise<Trajectory> {
  const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId }, FIRST_ANSWER);
  if (trajectory === undefined) throw new Error('the response of the server has no trajectory');
  return trajectory;
}

/** Prints steps. The text form also prints their owners and the final status. */
export class StepPrinter {
  readonly #cli: CliContext;
  readonly #json: boolean;
  #owner: string;

  constructor(cli: CliContext, json: boolean, trajectoryId: string) {
    this.#cli = cli;
    this.#json = json;
    this.#owner = trajectoryId;
  }

  async step({ trajectoryId, step }: OwnedStep): Promise<void> {
    if (this.#json) {
      const owned = create(OwnedStepSchema, { trajectoryId, step });
      await this.#print(messageJson(OwnedStepSchema, owned));
      return;
    }
    const paint = this.#paint;
    if (trajectoryId !== this.#owner) {
      await this.#print(paint.dim(`── steps of ${trajectoryId} ──`));
      this.#owner = trajectoryId;
    }
    await this.#print(stepLine(step, { columns: columnsOf(this.#cli), paint }));
  }

  async end({ status, statusMessage }: Trajectory): Promise<void> {
    if (this.#json || status === Status.RUNNING) return;
    const words = `── ${statusName(status)}${statusMessage === '' ? '' : `: ${printable(statusMessage)}`} ──`;
    await this.#print(this.#paint.dim(cut(words, columnsOf(this.#cli))));
  }

  get #paint() {
    return paintFor(this.#cli.stdout, this.#cli.env);
  }

  #print(line: string): Promise<void> {
    return write(this.#cli.stdout, `${line}\n`);
  }
}
