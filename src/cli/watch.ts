import { create } from '@bufbuild/protobuf';
import { Command } from 'commander';
import { RunChangesSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type RunPicture, watchRun } from '../client/index.ts';
import { messageJson, type Paint, printable } from './columns.ts';
import { type CliContext, CliError } from './context.ts';
import { type Forms, follow } from './follow.ts';
import { leftText } from './progress.ts';
import { addExperimentOption, findRun } from './references.ts';
import { addServerOptions, type ServerFlags, withServerOnExisting } from './server_access.ts';
import { stageTitle } from './stage_lines.ts';
import { isTerminal, statusName } from './status.ts';
import {
  groupText,
  groupTitle,
  progressText,
  rolloutText,
  rolloutTitle,
  runText,
  screenLines,
  stageText,
  stageTitleIn,
} from './watch_text.ts';

interface WatchFlags extends ServerFlags {
  readonly experiment?: string;
  readonly rollouts?: true;
  readonly exitStatus?: true;
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch watch main                             live, until the run is completed, failed or cancelled
  anabranch watch main --rollouts                  with its groups and rollouts
  anabranch watch main --exit-status && publish    continues only if it was completed
  anabranch watch main --json                      each change as JSON, one a line`;

export function watchCommand(cli: CliContext): Command {
  const command = new Command('watch')
    .description(
      'Watch a run live until it is completed, failed or cancelled. A terminal shows a live view; other outputs get one line per change.',
    )
    .argument('<RUN>', 'name or id of the run');
  addExperimentOption(command)
    .option('--rollouts', 'also show groups and rollouts')
    .option('--exit-status', 'exit with 1 if the run fails or is cancelled')
    .option('--json', 'print changes as JSON, one per line');
  return addServerOptions(command)
    .addHelpText('after', EXAMPLES)
    .action((run: string, flags: WatchFlags) => watch(cli, run, flags));
}

async function watch(cli: CliContext, argument: string, flags: WatchFlags): Promise<void> {
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const { experiment } = flags;
    const { id: runId, name } = await findRun(cli, client, { argument, experiment }, View.BASIC);
    const options = { runId, rollouts: flags.rollouts === true, untilTerminal: true, signal: cli.signal };
    const last = await follow(cli, flags.json === true, (onCut) => watchRun(client, { ...options, onCut }), FORMS);
    if (cli.signal.aborted || !flags.exitStatus || last?.run.status === Status.COMPLETED) return;
    throw new CliError(`${name}: ${statusName(last?.run.status ?? Status.UNSPECIFIED)}.`);
  });
}

const FORMS: Forms<RunPicture> = { json, changes, screen: screenLines };

/** What changed, as RunChanges. */
function json({ run, progress, changed }: RunPicture): string {
  const message = create(RunChangesSchema, {
    ...(changed.run ? { run } : {}),
    stages: [...changed.stages],
    groups: [...changed.groups],
    rollouts: [...changed.rollouts],
    ...(changed.progress ? { progress } : {}),
  });
  return messageJson(RunChangesSchema, message);
}

/** A line for the run, the progress, and each stage, rollout and group that changed. */
function changes({ run, stages, progress, changed }: RunPicture, { bold }: Paint) {
  const lines: (readonly [id: string, line: string, beside?: string])[] = [];
  const tell = (id: string, name: string, text: string, beside = '') => {
    if (text !== '') lines.push([id, `${bold(printable(name))}: ${text}`, beside]);
  };
  const titleOf = (stageId: string) => stageTitleIn(stages, stageId);
  if (changed.run && !isTerminal(run.status)) tell('run', run.name, runText(run));
  for (const stage of changed.stages) tell(stage.id, stageTitle(stage), stageText(stage));
  for (const each of changed.rollouts) tell(each.id, rolloutTitle(each, titleOf(each.stageId)), rolloutText(each));
  for (const each of changed.groups) tell(each.id, groupTitle(each, titleOf(each.stageId)), groupText(each));
  // The remaining time changes every second, so it alone causes no line.
  const left = leftText(progress);
  tell('progress', 'progress', progressText(progress), left === undefined ? '' : `, ${left} left`);
  // The end of the run is printed last, after everything else in the same picture.
  if (isTerminal(run.status)) tell('run', run.name, runText(run));
  return lines;
}
