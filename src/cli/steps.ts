import { Command } from 'commander';
import type { Trajectory } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, readSteps, resolveStep, type StepReference } from '../client/index.ts';
import { type CliContext, UsageError } from './context.ts';
import { parseStepReference, parseWhole } from './references.ts';
import { addServerOptions, type ServerFlags, withServerOnExisting } from './server_access.ts';
import { getTrajectory, StepPrinter } from './step_printer.ts';

interface StepsFlags extends ServerFlags {
  readonly from?: string;
  readonly to?: string;
  readonly json?: true;
}

const STEPS_EXAMPLES = `
Examples:
  anabranch steps ID                     every step, a line each
  anabranch steps ID@fork                the step tagged "fork" and all after it
  anabranch steps ID --from 10 --to 20   steps 10 to 19
  anabranch steps ID --json | jq .step   every step with all its contents, one JSON text a line

anabranch tail ID also waits for new steps.`;

export function stepsCommand(cli: CliContext): Command {
  const command = new Command('steps')
    .description('Show the steps of a trajectory, including shared steps, with all contents as JSON.')
    .argument('<TRAJECTORY>', 'id of the trajectory; ID@STEP or ID@TAG begins at that step')
    .option('--from <STEP>', 'begin at this step (default: 0)')
    .option('--to <STEP>', 'end before this step (default: the current end)')
    .option('--json', 'print steps as JSON, one per line');
  return addServerOptions(command)
    .addHelpText('after', STEPS_EXAMPLES)
    .action((trajectory: string, flags: StepsFlags) => runSteps(cli, trajectory, flags));
}

async function runSteps(cli: CliContext, argument: string, flags: StepsFlags): Promise<void> {
  const reference = parseStepReference(argument);
  const { trajectoryId } = reference;
  if (reference.at !== undefined && flags.from !== undefined) {
    throw new UsageError('--from and @ both set the first step: use only one of them.');
  }
  const from = flags.from === undefined ? 0n : parseWhole('--from', flags.from);
  const to = flags.to === undefined ? undefined : parseWhole('--to', flags.to);
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const { nextStepNumber } = await getTrajectory(client, trajectoryId);
    const startStepNumber = (await resolveStep(client, reference)) ?? from;
    const endStepNumber = to === undefined || to > nextStepNumber ? nextStepNumber : to;
    const printer = new StepPrinter(cli, client, flags.json === true, trajectoryId);
    const range = { trajectoryId, startStepNumber, endStepNumber, signal: cli.signal };
    for await (const owned of readSteps(client, range)) await printer.step(owned);
  });
}

interface TailFlags extends ServerFlags {
  readonly lines?: string;
  readonly from?: string;
  readonly follow: boolean;
  readonly json?: true;
}

const TAIL_EXAMPLES = `
Examples:
  anabranch tail ID                    the last 10 steps, then each new one, until the trajectory is sealed
  anabranch tail ID@200                from step 200 on
  anabranch tail ID@fork --no-follow   from the step tagged "fork" to the end as it is now
  anabranch tail ID --json             the same as JSON, one text a line

anabranch steps ID prints all steps and does not wait for new ones.`;

const DEFAULT_LINES = '10';

export function tailCommand(cli: CliContext): Command {
  const command = new Command('tail')
    .description('Show the steps of a trajectory, including shared steps, and follow it live.')
    .argument('<TRAJECTORY>', 'id of the trajectory; ID@STEP or ID@TAG begins at that step')
    .option('-n, --lines <N>', `begin with the last N steps (default: ${DEFAULT_LINES})`)
    .option('--from <STEP>', 'begin at this step')
    .option('--no-follow', 'stop at the current end')
    .option('--json', 'print steps as JSON, one per line');
  return addServerOptions(command)
    .addHelpText('after', TAIL_EXAMPLES)
    .action((trajectory: string, flags: TailFlags) => runTail(cli, trajectory, flags));
}

async function runTail(cli: CliContext, argument: string, flags: TailFlags): Promise<void> {
  const reference = parseStepReference(argument);
  const begin = parseBegin(reference, flags);
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const { trajectoryId } = reference;
    const trajectory = await getTrajectory(client, trajectoryId);
    const startStepNumber = await startOf(client, reference, begin, trajectory);
    const printer = new StepPrinter(cli, client, flags.json === true, trajectoryId);
    try {
      const { signal } = cli;
      for await (const owned of readSteps(client, { trajectoryId, startStepNumber, follow: flags.follow, signal })) {
        await printer.step(owned);
      }
    } catch (error) {
      if (cli.signal.aborted) return; // Ctrl-C is the normal end of following
      throw error;
    }
    await printer.end(await getTrajectory(client, trajectoryId));
  });
}

type Start = { readonly last: bigint } | { readonly from: bigint } | 'place';

/** -n, --from and @ set the same option, so at most one of them may be set. */
function parseBegin({ at }: StepReference, { lines, from }: TailFlags): Start {
  const setOptions = [lines === undefined ? '' : '-n', from === undefined ? '' : '--from', at === undefined ? '' : '@'];
  const names = setOptions.filter((name) => name !== '');
  if (names.length > 1) {
    throw new UsageError(`${names.join(' and ')} both set the first step: use only one of them.`);
  }
  if (at !== undefined) return 'place';
  if (from !== undefined) return { from: parseWhole('--from', from) };
  return { last: parseWhole('-n', lines ?? DEFAULT_LINES) };
}

async function startOf(
  client: AnabranchClient,
  place: StepReference,
  begin: Start,
  { nextStepNumber }: Trajectory,
): Promise<bigint> {
  if (begin === 'place') return (await resolveStep(client, place)) ?? 0n;
  if ('from' in begin) return begin.from;
  return nextStepNumber > begin.last ? nextStepNumber - begin.last : 0n;
}
