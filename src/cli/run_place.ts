/** Arguments that name a run, by id or by name, as every command takes them. */
import { type Command, Option } from 'commander';
import type { Run } from '../../gen/es/anabranch/v1/run_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { AnabranchClient } from '../client/index.ts';
import { type CliContext, CliError } from './context.ts';
import { commandPrefix, FIRST_ANSWER } from './server_access.ts';

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

export function isId(text: string): boolean {
  return UUID.test(text);
}

export function addExperimentOption(command: Command): Command {
  return command.addOption(
    new Option(
      '-e, --experiment <NAME>',
      'the experiment that it is of, by name or id, where several have a run of that name',
    ),
  );
}

/** An experiment by id or by name, as a filter of ListRuns; undefined: any. */
export function experimentFilter(text: string | undefined): { experimentId: string } | { experimentName: string } {
  return text !== undefined && isId(text) ? { experimentId: text } : { experimentName: text ?? '' };
}

/**
 * The run that is meant. A name is looked for in the experiment that was named, or in all of them: only if several have it, the user must
 * say which.
 */
export async function findRun(
  cli: CliContext,
  client: AnabranchClient,
  { argument, experiment }: { readonly argument: string; readonly experiment: string | undefined },
  view = View.FULL,
): Promise<Run> {
  if (argument === '') throw new CliError('RUN is "": wanted the id or the name of a run.', { exitCode: 2 });
  const runId = isId(argument) ? argument : await idOf(cli, client, argument, experiment);
  const { run } = await client.runs.getRun({ runId, view }, FIRST_ANSWER);
  if (run === undefined) throw new Error('the server answered without the run that it was asked for');
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
    const where = experiment === undefined ? '' : ` in the experiment ${JSON.stringify(experiment)}`;
    const listing = `\`${commandPrefix(cli)} runs\` lists what is there.`;
    throw new CliError(`No run is called ${JSON.stringify(name)}${where}. ${listing}`);
  }
  if (found.length > 1) throw ambiguous(name, found);
  return only.id;
}

/** Names are unique in an experiment: so many namesakes are enough to tell that there are too many. */
const MOST_NAMED = 6;

function ambiguous(name: string, runs: readonly Run[]): CliError {
  const experiments = runs.slice(0, MOST_NAMED - 1).map(({ experimentName }) => JSON.stringify(experimentName));
  const more = runs.length >= MOST_NAMED ? ', and others' : '';
  return new CliError(
    `Several runs are called ${JSON.stringify(name)}, in the experiments ${experiments.join(', ')}${more}: add --experiment NAME, or give the run's id.`,
  );
}
