import { create } from '@bufbuild/protobuf';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { Content, Step, Tensor, Trajectory } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { OwnedStepSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, downloadState, type OwnedStep } from '../client/index.ts';
import { numbersBytes, tensorText } from '../domain/numbers/tensor.ts';
import {
  columnsOf,
  counted,
  cut,
  messageJson,
  type Paint,
  paintFor,
  printable,
  shortNumber,
  widthOf,
} from './columns.ts';
import type { CliContext } from './context.ts';
import { FIRST_ANSWER, write } from './server_access.ts';
import { statusName } from './status.ts';

export async function getTrajectory(client: AnabranchClient, trajectoryId: string): Promise<Trajectory> {
  const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId }, FIRST_ANSWER);
  if (trajectory === undefined) throw new Error('the response of the server has no trajectory');
  return trajectory;
}

/** Prints steps. The text form also prints their owners and the final status. */
export class StepPrinter {
  readonly #cli: CliContext;
  readonly #client: AnabranchClient;
  readonly #json: boolean;
  #owner: string;
  /** Items of the tensors of the last step that are stored as states. */
  #states: States = new Map();

  constructor(cli: CliContext, client: AnabranchClient, json: boolean, trajectoryId: string) {
    this.#cli = cli;
    this.#client = client;
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
    this.#states = await this.#readStates(step);
    await this.#print(stepLine(step, this.#states, { columns: columnsOf(this.#cli), paint }));
  }

  async #readStates({ actions, observations }: Step): Promise<States> {
    const read = new Map<string, Uint8Array>();
    for (const { content } of [...actions, ...observations]) {
      const { stateDigest: digest } = content?.tensor ?? {};
      if (digest === undefined || numbersBytes(content!.tensor!) === undefined) continue;
      const { signal } = this.#cli;
      read.set(digest, this.#states.get(digest) ?? (await downloadState(this.#client, digest, { signal })));
    }
    return read;
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

const NUMBER_COLUMNS = 7;
const REWARD_COLUMNS = 9;
/** Maximum characters that are read from each text. Contents can be large, and a line is short. */
const MAX_CHARACTERS = 400;
const ARROW = ' → ';

type States = ReadonlyMap<string, Uint8Array>;

function stepLine(
  step: Step,
  states: States,
  { columns, paint }: { readonly columns: number; readonly paint: Paint },
): string {
  const number = String(step.stepNumber).padStart(NUMBER_COLUMNS);
  const reward = rewardText(step).padStart(REWARD_COLUMNS);
  const marks = marksOf(step);
  const room = columns - widthOf(number) - widthOf(reward) - widthOf(marks) - 4 - (marks === '' ? 0 : 2);
  const text = actionsAndObservations(step, states, Math.max(1, room));
  const ended = step.terminated || step.truncated;
  const shownMarks = marks === '' ? '' : `  ${ended ? paint.yellow(marks) : paint.dim(marks)}`;
  return `${paint.bold(number)}  ${paint.cyan(reward)}  ${text}${shownMarks}`.trimEnd();
}

function rewardText({ reward }: Step): string {
  if (reward === undefined) return '–';
  return reward > 0 ? `+${shortNumber(reward)}` : shortNumber(reward);
}

/** `push 1 → [0.1,0.2]`: actions leave at least half of the room to observations. */
function actionsAndObservations({ actions, observations }: Step, states: States, room: number): string {
  const done = actions.map(({ type, name, content }) => [name || type, contentText(content, states)].join(' ').trim());
  const seen = observations.map(({ type, content, isError }) => {
    return (isError ? 'error: ' : '') + (contentText(content, states) || type);
  });
  const observed = printable(seen.join('; '));
  if (observed === '') return cut(printable(done.join('; ')), room);
  const half = Math.max(Math.floor(room / 2), room - widthOf(cut(observed, room)));
  const did = cut(printable(done.join('; ')), half - ARROW.length);
  return cut(did === '' ? observed : did + ARROW + observed, room);
}

function contentText(content: Content | undefined, states: States): string {
  if (content === undefined) return '';
  const { tensor } = content;
  const text = content.text ?? content.json ?? content.uri ?? (tensor && numbersText(tensor, states));
  if (text !== undefined) return text.slice(0, MAX_CHARACTERS);
  if (tensor !== undefined) return `${tensor.dtype} [${tensor.shape.join(', ')}]`;
  const size = content.data === undefined ? content.size : content.data.length;
  return `<${content.mediaType || 'bytes'}, ${counted(size, 'byte')}>`;
}

function numbersText({ dtype, shape, data, stateDigest = '' }: Tensor, states: States): string | undefined {
  const bytes = data ?? states.get(stateDigest);
  return bytes && tensorText({ dtype, shape }, bytes);
}

/** `terminated [env, agent]` */
function marksOf({ terminated, truncated, states }: Step): string {
  const names = states.map(({ name }) => cut(printable(name), 12));
  const shown = names.length > 3 ? [...names.slice(0, 2), `${names.length - 2} more`] : names;
  const parts = [
    terminated ? 'terminated' : '',
    truncated ? 'truncated' : '',
    shown.length > 0 ? `[${shown.join(', ')}]` : '',
  ];
  return parts.filter((part) => part !== '').join(' ');
}
