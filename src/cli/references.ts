/** Arguments that name a run, a trajectory, a step or a number. Shared by all commands. */
import { type Command, Option } from 'commander';
import type { Experiment, Run } from '../../gen/es/anabranch/v1/run_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, parseStepReference as parse, reasonOf, type StepReference } from '../client/index.ts';
import { mayHoldPassword } from '../config/scrub_url.ts';
import { type CliContext, CliError, UsageError } from './context.ts';
import { commandPrefix, FIRST_ANSWER } from './server_access.ts';

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

export function isId(text: string): boolean {
  return UUID.test(text);
}

/**
 * Reads by an argument that begins with the id of a trajectory. Returns undefined if it does not, or if the id is that
 * of a run: then the argument names a run.
 */
export async function ofTrajectory<T>(
  client: AnabranchClient,
  argument: string,
  read: (reference: StepReference) => Promise<T>,
): Promise<T | undefined> {
  const [id = ''] = argument.split('@', 1);
  if (!isId(id)) return undefined;
  try {
    return await read(parseStepReference(argument));
  } catch (error) {
    const mayBeRun = reasonOf(error) === 'TRAJECTORY_NOT_FOUND' && argument === id;
    if (mayBeRun && (await isRun(client, id))) return undefined;
    throw error;
  }
}

async function isRun(client: AnabranchClient, runId: string): Promise<boolean> {
  try {
    await client.runs.getRun({ runId, view: View.BASIC }, FIRST_ANSWER);
    return true;
  } catch (error) {
    if (reasonOf(error) === 'RUN_NOT_FOUND') return false;
    throw error;
  }
}

export function addExperimentOption(
  command: Command,
  description = 'name or id of its experiment; required if several experiments have a run with that name',
): Command {
  return command.addOption(new Option('-e, --experiment <NAME>', description));
}

/** Finds an experiment by name or id. */
export async function findExperiment(client: AnabranchClient, argument: string): Promise<Experiment> {
  if (argument === '') throw new UsageError('--experiment is "": expected the name or the id of an experiment.');
  const named = isId(argument) ? { experimentId: argument } : { name: argument };
  const { experiment } = await client.runs.getExperiment({ ...named, view: View.BASIC }, FIRST_ANSWER);
  if (experiment === undefined) throw new Error('the response of the server has no experiment');
  return experiment;
}

/** Returns the filter of ListRuns for an experiment, by id or by name. Undefined: any experiment. */
export function experimentFilter(text: string | undefined): { experimentId: string } | { experimentName: string } {
  return text !== undefined && isId(text) ? { experimentId: text } : { experimentName: text ?? '' };
}

/**
 * Finds a run by id or by name. Searches the given experiment, else all experiments. Throws CliError if several runs
 * have the name, and asks for the experiment.
 */
export async function findRun(
  cli: CliContext,
  client: AnabranchClient,
  { argument, experiment }: { readonly argument: string; readonly experiment: string | undefined },
  view = View.FULL,
): Promise<Run> {
  if (argument === '') throw new UsageError('RUN is "": expected the id or the name of a run.');
  const runId = isId(argument) ? argument : await idOf(cli, client, argument, experiment);
  const { run } = await client.runs.getRun({ runId, view }, FIRST_ANSWER);
  if (run === undefined) throw new Error('the response of the server has no run');
  return run;
}

async function idOf(
  cli: CliContext,
  client: AnabranchClient,
  name: string,
  experiment: string | undefined,
): Promise<string> {
  const filter = { ...experimentFilter(experiment), name, pageSize: MOST_NAMED };
  const found = (await client.runs.listRuns(filter, FIRST_ANSWER)).runs.flatMap(({ run }) => run ?? []);
  const [only] = found;
  if (only === undefined) {
    const where = experiment === undefined ? '' : ` in experiment ${JSON.stringify(experiment)}`;
    const listing = `\`${commandPrefix(cli)} runs\` lists the runs.`;
    throw new CliError(`No run has the name ${JSON.stringify(name)}${where}. ${listing}`);
  }
  if (found.length > 1) throw ambiguous(name, found);
  return only.id;
}

/** Names are unique within an experiment. This many runs of one name are enough to say that there are too many. */
const MOST_NAMED = 6;

function ambiguous(name: string, runs: readonly Run[]): CliError {
  const experiments = runs.slice(0, MOST_NAMED - 1).map(({ experimentName }) => JSON.stringify(experimentName));
  const more = runs.length >= MOST_NAMED ? ', and others' : '';
  return new CliError(
    `Several runs have the name ${JSON.stringify(name)}, in experiments ${experiments.join(', ')}${more}: add --experiment NAME, or use the run's id.`,
  );
}

const NUMBER = /^\d+$/;
const MAX_STEP_NUMBER = 2n ** 63n - 1n;

/** Parses `TRAJECTORY`, `TRAJECTORY@STEP` or `TRAJECTORY@TAG`. Throws UsageError with the expected form. */
export function parseStepReference(text: string): StepReference {
  try {
    return parse(text);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    const message = mayHoldPassword(text)
      ? 'TRAJECTORY is not the id of a trajectory (not shown: it may hold a password)'
      : `TRAJECTORY is ${error.message}`;
    throw new UsageError(`${message}; \`tree\` lists ids.`);
  }
}

/** Parses a count or a step number of a flag. Throws UsageError if it is out of bounds. */
export function parseWhole(flag: string, text: string, min = 0n, max = MAX_STEP_NUMBER): bigint {
  if (NUMBER.test(text) && BigInt(text) >= min && BigInt(text) <= max) return BigInt(text);
  const bounds = max === MAX_STEP_NUMBER ? `${min} or more` : `${min} to ${max}`;
  throw new UsageError(`${flag} is "${text}": expected a whole number, ${bounds}.`);
}
