import { Command } from 'commander';
import { readSteps, resolveStep } from '../client/index.ts';
import { type CliContext, UsageError } from './context.ts';
import { addServerOptions, type ServerFlags, withServerOnExisting } from './server_access.ts';
import { getTrajectory, StepPrinter } from './step_printer.ts';
import { parseStepReference, parseWhole } from './step_reference.ts';

interface StepsFlags extends ServerFlags {
  readonly from?: string;
  readonly to?: string;
  readonly json?: true;
}

const EXAMPLES = `
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
    .addHelpText('after', EXAMPLES)
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
    const printer = new StepPrinter(cli, flags.json === true, trajectoryId);
    const range = { trajectoryId, startStepNumber, endStepNumber, signal: cli.signal };
    for await (const owned of readSteps(client, range)) await printer.step(owned);
  });
}
