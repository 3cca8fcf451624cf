/** Draws one rollout on a page: result and verdict, attempts, validations, environments, turns. */
import {
  type Attempt,
  type Environment,
  type Rollout,
  RolloutSchema,
  type Task,
  type Validation,
  type ValidationOverride,
} from '../../gen/es/anabranch/v1/rollout_pb.js';
import type { Run, Stage } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { Step } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { cut, fill, numbersText, type Paint, printable, shortNumber, widthOf } from './columns.ts';
import { type Fact, type FieldOf, factLines, labelsText, otherFacts } from './facts.ts';
import { durationText, secondsOf, timeText, tookText } from './progress_text.ts';
import { verdictText } from './rollouts_table.ts';
import { stageTitle } from './stage_lines.ts';
import { colourOf, statusName } from './status.ts';
import { stepLine } from './step_line.ts';

/** Everything that the page shows. */
export interface RolloutPageParts {
  /** In the FULL view. */
  readonly rollout: Rollout;
  readonly run: Run | undefined;
  readonly stage: Stage | undefined;
  readonly task: Task | undefined;
  /** Attempts by number. */
  readonly attempts: readonly Attempt[];
  readonly validations: readonly Validation[];
  /** Overrides, newest first. */
  readonly overrides: readonly ValidationOverride[];
  readonly environments: readonly Environment[];
  /** Undefined if no attempt has a trajectory. */
  readonly steps: AttemptSteps | undefined;
}

/** The last own steps of an attempt. */
export interface AttemptSteps {
  readonly attempt: number;
  readonly steps: readonly Step[];
  /** Number of own steps before them. */
  readonly earlierSteps: bigint;
}

export interface RolloutPageOptions {
  /** Maximum width of a line. */
  readonly columns: number;
  readonly paint: Paint;
}

const MOST_LINES = 10;

/** Returns the lines, without line ends. Empty sections are left out. */
export function rolloutPage(parts: RolloutPageParts, options: RolloutPageOptions): string[] {
  const { paint, columns } = options;
  const narrower = { paint, columns: columns - 2 };
  const sections: readonly (readonly [string, readonly string[]])[] = [
    ['errors', fewOf((parts.rollout.result?.errors ?? []).map((error) => cut(printable(error), narrower.columns)))],
    ['validations', validationLines(parts.validations, narrower)],
    ['overrides', fewOf(overrideLines(parts.overrides, narrower))],
    ['attempts', attemptLines(parts.attempts, narrower)],
    ['environments', environmentLines(parts.environments, narrower)],
    ['times', timingLines(parts.rollout, narrower)],
  ];
  return [
    titleLine(parts, options),
    ...headLines(parts, options),
    ...sections.flatMap(([title, lines]) =>
      lines.length === 0 ? [] : ['', paint.dim(title), ...lines.map((line) => `  ${line}`)],
    ),
    ...turnLines(parts, options),
  ];
}

function fewOf(lines: readonly string[]): readonly string[] {
  const more = lines.length - MOST_LINES;
  return more <= 0 ? lines : [...lines.slice(0, MOST_LINES), `… ${more} more; --json shows all`];
}

/** Name on the left, status on the right. */
function titleLine({ rollout, stage }: RolloutPageParts, { columns, paint }: RolloutPageOptions): string {
  const status = statusName(rollout.status);
  const where = stage === undefined ? '' : ` of ${stageTitle(stage)}`;
  const name = `rollout ${rollout.number} of group ${rollout.groupNumber}${where}`;
  return `${paint.bold(fill(name, columns - widthOf(status) - 1))} ${colourOf(status, paint)(status)}`;
}

/** Fields that the page shows in a way of their own, or leaves out: ids and numbers that say nothing to a reader. */
const DRAWN = new Set<FieldOf<typeof RolloutSchema>>([
  ...(['id', 'runId', 'stageId', 'groupId', 'groupNumber', 'number', 'taskId', 'labels', 'inputJson'] as const),
  ...(['maxTurns', 'maxAttempts', 'refundedAttempts', 'startFrom', 'status', 'statusMessage', 'phase'] as const),
  ...(['attempt', 'trajectoryId', 'turns', 'workerId', 'leaseEndTime', 'claimableTime', 'result'] as const),
  ...(['validationPassed', 'override', 'success', 'reward', 'metrics', 'timings', 'metadataJson'] as const),
  ...(['startTime', 'endTime', 'createTime', 'updateTime', 'revision'] as const),
]);

function headLines(parts: RolloutPageParts, options: RolloutPageOptions): string[] {
  const { rollout, run } = parts;
  const { result } = rollout;
  const facts: readonly Fact[] = [
    ['reward', rollout.reward === undefined ? '' : shortNumber(rollout.reward)],
    ['success', successFact(rollout)],
    ['turns', turnsFact(parts)],
    ['task', taskFact(parts)],
    ['phase', rollout.phase],
    ['message', rollout.statusMessage],
    ['id', rollout.id],
    ['run', run === undefined ? rollout.runId : `${run.name} (${run.id})`],
    ['attempt', attemptFact(rollout)],
    ['trajectory', rollout.trajectoryId],
    ['begins at', beginFact(rollout)],
    ['worker', rollout.workerId],
    ['lease until', rollout.leaseEndTime === undefined ? '' : timeText(rollout.leaseEndTime)],
    ['claimable', claimableFact(rollout)],
    ...otherFacts(RolloutSchema, rollout, DRAWN),
    ['labels', labelsText(rollout.labels)],
    ['numbers', numbersText(rollout.metrics)],
    ['created', rollout.createTime === undefined ? '' : timeText(rollout.createTime)],
    ['began', rollout.startTime === undefined ? '' : timeText(rollout.startTime)],
    ['ended', endFact(rollout)],
    ['input', rollout.inputJson],
    ['summary', result?.summaryJson ?? ''],
    ['metadata', rollout.metadataJson],
  ];
  return factLines(facts, options);
}

function attemptFact({ attempt, maxAttempts, refundedAttempts: refunded }: Rollout): string {
  if (attempt === 0) return 'none yet';
  return `${attempt} of at most ${maxAttempts + refunded}${refunded === 0 ? '' : ` (${refunded} refunded)`}`;
}

/** When a released rollout can be claimed again. */
function claimableFact({ attempt, claimableTime }: Rollout): string {
  return attempt === 0 || claimableTime === undefined ? '' : timeText(claimableTime);
}

/** The verdict and its source, then the agent's own report, which may differ. */
function successFact({ status, success, override, validationPassed, result }: Rollout): string {
  const { taskCompleted, agentReportedSuccess } = result ?? {};
  const whose =
    status === Status.FAILED
      ? 'it failed'
      : override?.success !== undefined
        ? 'overridden'
        : validationPassed !== undefined
          ? 'validated'
          : 'as its worker reported';
  const notes = [
    success === undefined ? '' : `${verdictText(success)}, ${whose}`,
    agentReportedSuccess === undefined ? '' : `the agent reported ${verdictText(agentReportedSuccess)}`,
    taskCompleted === undefined ? '' : `task ${taskCompleted ? '' : 'not '}completed`,
  ].filter((part) => part !== '');
  return notes.join('; ');
}

/** The turn limit of the rollout, else of its task. */
function turnsFact({ rollout: { attempt, turns, ...own }, task }: RolloutPageParts): string {
  const maxTurns = own.maxTurns ?? task?.maxTurns;
  const most = maxTurns === undefined ? '' : `at most ${maxTurns}`;
  if (attempt === 0) return most;
  return most === '' ? String(turns) : `${turns} of ${most}`;
}

function taskFact({ rollout: { taskId }, task }: RolloutPageParts): string {
  const title = task?.name || task?.description || '';
  return title === '' ? taskId : `${taskId}: ${title}`;
}

function beginFact({ startFrom }: Rollout): string {
  return startFrom === undefined ? '' : `step ${startFrom.stepNumber} of ${startFrom.trajectoryId}`;
}

function endFact({ startTime, endTime }: Rollout): string {
  if (endTime === undefined) return '';
  const took = tookText(startTime, endTime);
  return timeText(endTime) + (took === undefined ? '' : `, after ${took}`);
}

/** `state       yes  expected 200, got 200, 1 s` */
function validationLines(validations: readonly Validation[], { columns, paint }: RolloutPageOptions): string[] {
  const title = (each: Validation) => printable(each.name) + (each.advisory ? ' (advisory)' : '');
  const width = Math.min(32, widest(validations.map(title)));
  return validations.map((each) => {
    const verdict = verdictText(each.success);
    const notes = [
      each.query,
      each.expectedResult === '' ? '' : `expected ${each.expectedResult}`,
      each.actualResult === '' ? '' : `got ${each.actualResult}`,
      each.errorMessage === '' ? '' : `error: ${each.errorMessage}`,
      each.executionDuration === undefined ? '' : durationText(secondsOf(each.executionDuration)),
    ].filter((note) => note !== '');
    const coloured = each.success ? paint.green(fill(verdict, 3)) : paint.red(fill(verdict, 3));
    return `${fill(title(each), width)}  ${coloured}  ${cut(printable(notes.join(', ')), columns - width - 7)}`.trimEnd();
  });
}

/** `2026-11-21 15:40:12 UTC  yes  ana: the screen shows it` */
function overrideLines(overrides: readonly ValidationOverride[], { columns, paint }: RolloutPageOptions): string[] {
  return overrides.map(({ success, reason, actor, overrideTime }) => {
    const time = overrideTime === undefined ? '' : `${timeText(overrideTime)}  `;
    const verdict = success === undefined ? 'withdrawn' : verdictText(success);
    const room = columns - widthOf(time) - widthOf(verdict) - 2;
    return `${paint.dim(time)}${paint.bold(verdict)}  ${cut(printable(`${actor}: ${reason}`), room)}`;
  });
}

/**
 * `1 failed       12 s  worker-2, the lease ended`, with the first error of an attempt that failed. The attempt's
 * trajectory is on the next line.
 */
function attemptLines(attempts: readonly Attempt[], { columns, paint }: RolloutPageOptions): string[] {
  const numbers = widest(attempts.map(({ number }) => String(number)));
  const statuses = widest(attempts.map(({ status }) => statusName(status)));
  return attempts.flatMap(({ number, status, claimTime, endTime, workerId, message, trajectoryId, result }) => {
    const name = statusName(status);
    const took = (tookText(claimTime, endTime) ?? '').padStart(6);
    const note = printable([workerId, message, result?.errors[0] ?? ''].filter((part) => part !== '').join(', '));
    const head = `${String(number).padStart(numbers)} ${colourOf(name, paint)(fill(name, statuses))} ${took}`;
    const room = columns - numbers - statuses - 6 - 4;
    return [
      `${head}  ${cut(note, room)}`.trimEnd(),
      `${' '.repeat(numbers + 1)}${paint.dim(trajectoryId === '' ? 'its trajectory was deleted' : trajectoryId)}`,
    ];
  });
}

/** `android  pixel-7  running, booted` and the id, which other commands need. */
function environmentLines(environments: readonly Environment[], { columns, paint }: RolloutPageOptions): string[] {
  return environments.flatMap(({ type, externalId, status, phase, statusMessage, id }) => {
    const name = statusName(status);
    const head = printable([type, externalId].filter((part) => part !== '').join(' ')) || 'environment';
    const notes = [name, phase, statusMessage].filter((part) => part !== '').join(', ');
    const shown = cut(head, Math.floor(columns / 2));
    const rest = cut(printable(notes), columns - widthOf(shown) - 2);
    return [`${shown}  ${colourOf(name, paint)(rest)}`, paint.dim(`  ${id}`)];
  });
}

/** `env_creation    3 s`; a timing without a duration shows its start. */
function timingLines({ timings }: Rollout, { columns }: RolloutPageOptions): string[] {
  const names = Object.keys(timings).sort();
  const width = Math.min(40, widest(names.map(printable)));
  return names.map((name) => {
    const { startTime, endTime } = timings[name] ?? {};
    const took = tookText(startTime, endTime) ?? (startTime === undefined ? '' : `since ${timeText(startTime)}`);
    return cut(`${fill(printable(name), width)}  ${took.padStart(6)}`, columns);
  });
}

function turnLines({ rollout, steps }: RolloutPageParts, { columns, paint }: RolloutPageOptions): string[] {
  if (steps === undefined || steps.steps.length === 0) return [];
  const title = steps.attempt === rollout.attempt ? 'turns' : `turns of attempt ${steps.attempt}`;
  const earlier = steps.earlierSteps === 0n ? '' : ` (${steps.earlierSteps} before; --turns N shows more)`;
  return ['', paint.dim(`${title}${earlier}`), ...steps.steps.map((step) => stepLine(step, { columns, paint }))];
}

function widest(texts: readonly string[]): number {
  return texts.reduce((width, text) => Math.max(width, widthOf(text)), 0);
}
