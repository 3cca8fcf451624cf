import { type DescMessage, type MessageShape, toJson } from '@bufbuild/protobuf';
import { Command } from 'commander';
import {
  type Attempt,
  AttemptSchema,
  type Environment,
  EnvironmentSchema,
  RolloutSchema,
  TaskSchema,
  type ValidationOverride,
  ValidationOverrideSchema,
  ValidationSchema,
} from '../../gen/es/anabranch/v1/rollout_pb.js';
import { type Step, StepSchema, View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, readSteps } from '../client/index.ts';
import { columnsOf, paintFor } from './columns.ts';
import { type CliContext, CliError } from './context.ts';
import { type AttemptSteps, type RolloutPageParts, rolloutPage } from './rollout_page.ts';
import { isId } from './run_reference.ts';
import {
  addServerOptions,
  DEFAULT_ADDRESS,
  FIRST_ANSWER,
  JSON_FORM,
  readAll,
  type ServerFlags,
  withServerOnExisting,
  write,
  writePageLink,
} from './server_access.ts';
import { parseWhole } from './step_reference.ts';

interface RolloutFlags extends ServerFlags {
  readonly attempt?: string;
  readonly turns: string;
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch rollout ID                      its result and its last 10 steps
  anabranch rollout ID --turns 200          its last 200 steps
  anabranch rollout ID --attempt 1          the steps of its first attempt
  anabranch rollout ID --json | jq .validations

\`anabranch rollouts RUN\` lists ids. A trajectory's steps can be followed live by \`anabranch tail TRAJECTORY\`.`;

const MOST_STEPS = 10_000n;
const MOST_ATTEMPTS = 2n ** 31n - 1n;

export function rolloutCommand(cli: CliContext): Command {
  const command = new Command('rollout')
    .description('Show one rollout: its verdict, attempts, validations, overrides, environments and turns.')
    .argument('<ROLLOUT>', 'id of the rollout')
    .option('--attempt <N>', 'show the steps of this attempt (default: the current one)')
    .option('-n, --turns <N>', 'show at most this many steps, the last ones', '10')
    .option('--json', 'print everything as JSON');
  return addServerOptions(command, `address of the server (default: ${DEFAULT_ADDRESS})`)
    .addHelpText('after', EXAMPLES)
    .action((rollout: string, flags: RolloutFlags) => showRollout(cli, rollout, flags));
}

async function showRollout(cli: CliContext, rolloutId: string, flags: RolloutFlags): Promise<void> {
  if (!isId(rolloutId)) {
    throw new CliError(`ROLLOUT is "${rolloutId}": expected the id of a rollout; \`rollouts RUN\` lists ids.`, {
      exitCode: 2,
    });
  }
  const most = parseWhole('--turns', flags.turns, 0n, MOST_STEPS);
  const attempt = flags.attempt === undefined ? undefined : parseWhole('--attempt', flags.attempt, 1n, MOST_ATTEMPTS);
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const parts = await readParts(client, rolloutId, { most, attempt, signal: cli.signal });
    const options = { columns: columnsOf(cli), paint: paintFor(cli.stdout, cli.env) };
    const text = flags.json ? JSON.stringify(partsJson(parts)) : rolloutPage(parts, options).join('\n');
    await write(cli.stdout, `${text}\n`);
    if (!flags.json) await writePageLink(cli, flags, client, `/rollouts/${rolloutId}`);
  });
}

interface Wanted {
  readonly most: bigint;
  readonly attempt: bigint | undefined;
  readonly signal: AbortSignal;
}

async function readParts(client: AnabranchClient, rolloutId: string, wanted: Wanted): Promise<RolloutPageParts> {
  const { rollout, attempts, validations } = await client.rollouts.getRollout({ rolloutId }, FIRST_ANSWER);
  if (rollout === undefined) throw new Error('the response of the server has no rollout');
  const { runId, stageId, taskId } = rollout;
  const [{ run }, { stage }, task, overrides, environments, steps] = await Promise.all([
    client.runs.getRun({ runId, view: View.BASIC }, FIRST_ANSWER),
    client.runs.getStage({ stageId, view: View.BASIC }, FIRST_ANSWER),
    taskId === '' ? undefined : client.rollouts.getTask({ taskId }, FIRST_ANSWER),
    readOverrides(client, rolloutId),
    readEnvironments(client, rolloutId),
    readAttempt(client, { rolloutId, attempts, current: rollout.attempt }, wanted),
  ]);
  return { rollout, run, stage, task: task?.task, attempts, validations, overrides, environments, steps };
}

function readOverrides(client: AnabranchClient, rolloutId: string): Promise<ValidationOverride[]> {
  return readAll(
    (pageToken) => client.rollouts.listValidationOverrides({ rolloutId, pageSize: 1000, pageToken }, FIRST_ANSWER),
    ({ overrides }) => overrides,
  );
}

function readEnvironments(client: AnabranchClient, rolloutId: string): Promise<Environment[]> {
  return readAll(
    (pageToken) => client.rollouts.listEnvironments({ rolloutId, pageSize: 1000, pageToken }, FIRST_ANSWER),
    ({ environments }) => environments,
  );
}

interface Attempts {
  readonly rolloutId: string;
  readonly attempts: readonly Attempt[];
  readonly current: number;
}

/**
 * Reads the last own steps of an attempt, without the steps that it shares with the trajectory it was branched from.
 */
async function readAttempt(
  client: AnabranchClient,
  { rolloutId, attempts, current }: Attempts,
  { most, attempt, signal }: Wanted,
): Promise<AttemptSteps | undefined> {
  const number = attempt === undefined ? current : Number(attempt);
  const found = attempts.find((each) => each.number === number);
  if (found === undefined && attempt !== undefined) {
    const numbers = attempts.map((each) => each.number).join(', ');
    throw new CliError(
      `Rollout ${rolloutId} has no attempt ${attempt}: it has ${numbers === '' ? 'none yet' : numbers}.`,
    );
  }
  if (found === undefined || found.trajectoryId === '') return undefined;
  const { trajectoryId } = found;
  const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId }, FIRST_ANSWER);
  const { nextStepNumber: end = 0n, branchPoint } = trajectory ?? {};
  const first = branchPoint === undefined ? 0n : branchPoint + 1n;
  const startStepNumber = end - most > first ? end - most : first;
  const steps: Step[] = [];
  if (startStepNumber < end) {
    const range = { trajectoryId, startStepNumber, endStepNumber: end, signal };
    for await (const { step } of readSteps(client, range)) steps.push(step);
  }
  return { attempt: number, steps, earlierSteps: startStepNumber - first };
}

function partsJson(parts: RolloutPageParts): object {
  const all = <D extends DescMessage>(schema: D, messages: readonly MessageShape<D>[]) =>
    messages.map((message) => toJson(schema, message, JSON_FORM));
  return {
    rollout: toJson(RolloutSchema, parts.rollout, JSON_FORM),
    task: parts.task === undefined ? null : toJson(TaskSchema, parts.task, JSON_FORM),
    attempts: all(AttemptSchema, parts.attempts),
    validations: all(ValidationSchema, parts.validations),
    overrides: all(ValidationOverrideSchema, parts.overrides),
    environments: all(EnvironmentSchema, parts.environments),
    steps: all(StepSchema, parts.steps?.steps ?? []),
  };
}
