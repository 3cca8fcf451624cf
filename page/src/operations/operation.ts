import { Role } from '../../../gen/es/anabranch/v1/access_pb.js';
import type { Rollout } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import type { Run } from '../../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import type { Api } from '../client.ts';
import { count, nameOf } from '../format.ts';
import type { Call } from './code.ts';

/** A value that a person enters. */
export interface Field {
  readonly name: string;
  readonly label: string;
  /** `lines`: several lines of text. `check`: `yes` or empty. Otherwise the values to choose from. */
  readonly kind: 'text' | 'lines' | 'check' | readonly string[];
  readonly optional?: boolean;
}

/** Entered values by the names of their fields. */
export type Values = Readonly<Record<string, string>>;

/** Something that a person can do with a resource. */
export interface Operation {
  /** On its button. */
  readonly title: string;
  /** What is confirmed. */
  readonly question: string;
  readonly fields: readonly Field[];
  /** The role that the method declares. */
  readonly needs: Role;
  /** Reads the values that the fields begin with. */
  readonly load?: (api: Api, signal: AbortSignal) => Promise<Values>;
  /** Returns the call. Throws an error that a person can read if a value is none. */
  readonly call: (values: Values) => Call;
  /** True if the call creates a branch: the page then shows how to continue it. */
  readonly branches?: boolean;
}

export async function perform(api: Api, { service, rpc, request }: Call): Promise<unknown> {
  const methods = api[service] as unknown as Readonly<Record<string, (request: object) => Promise<unknown>>>;
  return methods[rpc]?.(request);
}

interface TrajectoryAt {
  readonly id: string;
  readonly name: string;
}

/** What can be done with a trajectory, and with one of its steps. */
export function trajectoryOperations(trajectory: TrajectoryAt, step: number): Operation[] {
  const { id: trajectoryId } = trajectory;
  const stepNumber = BigInt(step);
  const name = nameOf(trajectory);
  const load = async (api: Api, signal: AbortSignal) => {
    return valuesOf((await api.trajectories.getTrajectory({ trajectoryId }, { signal })).trajectory);
  };
  return [
    {
      title: 'Branch here',
      needs: Role.WORK,
      question: `Create a branch of ${name} that shares its steps up to ${count(step)}?`,
      fields: [NAME, LABELS],
      branches: true,
      call: ({ name = '', labels = '' }) => ({
        service: 'trajectories',
        rpc: 'branchTrajectory',
        request: { trajectoryId, stepNumber, name, labels: labelsOf(labels) },
      }),
    },
    {
      title: 'Tag',
      needs: Role.WORK,
      question: `Tag step ${count(step)} of ${name}? A tag with this name moves to this step.`,
      fields: [{ ...NAME, label: 'Name of the tag', optional: false }],
      call: ({ name = '' }) => ({
        service: 'trajectories',
        rpc: 'setTag',
        request: { trajectoryId, name, stepNumber },
      }),
    },
    ...renameAndLabel(name, Role.WORK, load, (request) => ({
      service: 'trajectories',
      rpc: 'updateTrajectory',
      request: { trajectoryId, ...request },
    })),
  ];
}

const TERMINAL: readonly Status[] = [Status.COMPLETED, Status.FAILED, Status.CANCELLED];

/** What can be done with a run in its status. */
export function runOperations(run: Pick<Run, 'id' | 'name' | 'status'>): Operation[] {
  const { id: runId, status } = run;
  const name = nameOf(run);
  const load = async (api: Api, signal: AbortSignal) => valuesOf((await api.runs.getRun({ runId }, { signal })).run);
  const move = (title: string, rpc: string, question: string): Operation => ({
    title,
    needs: Role.WRITE,
    question,
    fields: [MESSAGE],
    call: ({ message = '' }) => ({ service: 'runs', rpc, request: { runId, message } }),
  });
  const cancel: Operation = {
    ...move('Cancel', 'cancelRun', `Cancel ${name}?`),
    fields: [MESSAGE, { name: 'rollouts', label: 'Cancel its rollouts, too', kind: 'check', optional: true }],
    call: ({ message = '', rollouts = '' }) => ({
      service: 'runs',
      rpc: 'cancelRun',
      request: { runId, message, cancelRollouts: rollouts !== '' },
    }),
  };
  return [
    ...(status === Status.RUNNING ? [move('Pause', 'pauseRun', `Pause ${name}?`)] : []),
    ...(status === Status.PAUSED ? [move('Resume', 'resumeRun', `Resume ${name}?`)] : []),
    ...(TERMINAL.includes(status) ? [] : [cancel]),
    ...renameAndLabel(name, Role.WRITE, load, (request) => ({
      service: 'runs',
      rpc: 'updateRun',
      request: { runId, ...request },
    })),
  ];
}

type Verdict = 'success' | 'no success' | 'withdraw';

/** What can be done with a rollout in its status. */
export function rolloutOperations(rollout: Pick<Rollout, 'id' | 'number' | 'status' | 'attempt'>): Operation[] {
  const { id: rolloutId, status, attempt } = rollout;
  const name = `rollout ${count(rollout.number)}`;
  const override: Operation = {
    title: 'Override verdict',
    needs: Role.WRITE,
    question: `Set the verdict of ${name} by hand?`,
    fields: [
      { name: 'verdict', label: 'Verdict', kind: ['success', 'no success', 'withdraw'] satisfies Verdict[] },
      { name: 'reason', label: 'Reason', kind: 'text' },
    ],
    call: ({ verdict = '', reason = '' }) => ({
      service: 'rollouts',
      rpc: 'overrideValidation',
      request: {
        rolloutId,
        ...(verdict === 'withdraw' ? {} : { success: verdict === 'success' }),
        reason,
        actor: 'page',
        attempt,
      },
    }),
  };
  const move = (title: string, rpc: string, request: Call['request']): Operation => ({
    title,
    needs: Role.WRITE,
    question: `${title} ${name}?`,
    fields: [MESSAGE],
    call: ({ message = '' }) => ({ service: 'rollouts', rpc, request: { rolloutId, ...request, message } }),
  });
  const load = async (api: Api, signal: AbortSignal) => {
    return valuesOf((await api.rollouts.getRollout({ rolloutId }, { signal })).rollout);
  };
  const retriable = status === Status.FAILED || status === Status.CANCELLED;
  return [
    ...(attempt > 0 ? [override] : []),
    ...(retriable ? [move('Retry', 'retryRollout', { attempt })] : []),
    ...(TERMINAL.includes(status) ? [] : [move('Cancel', 'cancelRollout', {})]),
    ...renameAndLabel(name, Role.WORK, load, (request) => ({
      service: 'rollouts',
      rpc: 'updateRollout',
      request: { rolloutId, ...request },
    })).filter(({ title }) => title === 'Label'),
  ];
}

const NAME: Field = { name: 'name', label: 'Name', kind: 'text', optional: true };
const LABELS: Field = { name: 'labels', label: 'Labels, one NAME=VALUE on each line', kind: 'lines', optional: true };
const MESSAGE: Field = { name: 'message', label: 'Message', kind: 'text', optional: true };

function renameAndLabel(
  resource: string,
  needs: Role,
  load: NonNullable<Operation['load']>,
  update: (request: Call['request']) => Call,
): Operation[] {
  return [
    {
      title: 'Rename',
      needs,
      question: `Rename ${resource}?`,
      fields: [NAME],
      load,
      call: ({ name = '' }) => update({ name, updateMask: { paths: ['name'] } }),
    },
    {
      title: 'Label',
      needs,
      question: `Replace the labels of ${resource}?`,
      fields: [LABELS],
      load,
      call: ({ labels = '' }) => update({ labels: labelsOf(labels), updateMask: { paths: ['labels'] } }),
    },
  ];
}

interface Labelled {
  readonly name?: string;
  readonly labels: Readonly<Record<string, string>>;
}

function valuesOf(resource: Labelled | undefined): Values {
  const labels = Object.entries(resource?.labels ?? {}).map(([name, value]) => `${name}=${value}`);
  return { name: resource?.name ?? '', labels: labels.join('\n') };
}

/** Returns labels from lines such as `lr=0.1`. */
export function labelsOf(lines: string): Record<string, string> {
  const labels: [string, string][] = [];
  for (const line of lines.split('\n').filter((each) => each.trim() !== '')) {
    const [, name, value] = /^([^=]+)=(.*)$/.exec(line) ?? [];
    if (name === undefined || value === undefined) throw new Error(`A label must be NAME=VALUE, got ${line}`);
    if (labels.some(([earlier]) => earlier === name)) throw new Error(`The label ${name} is given twice.`);
    labels.push([name, value]);
  }
  return Object.fromEntries(labels);
}
