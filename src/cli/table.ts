import { stat } from 'node:fs/promises';
import { extname, resolve } from 'node:path';
import { Command, Option } from 'commander';
import { TABLE_FORMATS, type TableFormat } from '../tables/write.ts';
import { counted, valueJson } from './columns.ts';
import { type CliContext, CliError, UsageError } from './context.ts';
import { parseBound, parseLabel, parseStatuses, parseStepLabel } from './filters.ts';
import { createFile } from './new_file.ts';
import { openProgress } from './progress.ts';
import { addExperimentOption } from './references.ts';
import { addServerOptions, type ServerFlags, withServerOnExisting, write } from './server_access.ts';
import { ROW_KINDS, type RowKind, type SelectionFlags, selectionOf, writeRows } from './table_rows.ts';

interface TableFlags extends ServerFlags, SelectionFlags {
  readonly output: string;
  readonly rows: RowKind;
  readonly format?: TableFormat;
  readonly columns?: string;
  readonly own?: true;
  readonly json?: true;
}

const DESCRIPTION =
  'Write steps, trajectories or rollouts into a new file for analysis, a row each: JSON Lines, Parquet or SQLite. Of one trajectory, a run, an ' +
  'experiment, a task, or all (--all). The file appears when it is complete.';

const EXAMPLES = `
Examples:
  anabranch table ID -o steps.parquet                       the steps of a trajectory, inherited ones included
  anabranch table main -o steps.sqlite                      of all trajectories of the run of that name
  anabranch table main --rows rollouts -o rollouts.parquet  its rollouts
  anabranch table --task CartPole-v1 --min-reward 400 -o best.jsonl
  anabranch table -e sweep -o rewards.parquet --columns trajectory_id,step,reward

docs/tables.md describes the columns, and how actions and observations are aligned.`;

const ENDINGS: Readonly<Record<string, TableFormat>> = {
  '.jsonl': 'jsonl',
  '.ndjson': 'jsonl',
  '.parquet': 'parquet',
  '.sqlite': 'sqlite',
  '.db': 'sqlite',
};

export function tableCommand(cli: CliContext): Command {
  const command = new Command('table')
    .description(DESCRIPTION)
    .argument('[TRAJECTORY|RUN]', 'id of a trajectory, or id or name of a run')
    .requiredOption('-o, --output <FILE>', 'the file to create; an existing one is not replaced')
    .addOption(new Option('--format <FORMAT>', "default: by the file's ending").choices(TABLE_FORMATS))
    .addOption(new Option('--rows <ROWS>', 'what a row is').choices(ROW_KINDS).default('steps'))
    .option('--columns <NAME,…>', 'only these columns, in this order')
    .option('--own', 'leave out inherited steps, so that each step is in one row only');
  addExperimentOption(command)
    .option('--task <ID>', 'only of this task')
    .option('--status <STATUS,…>', 'only trajectories or rollouts with these statuses', parseStatuses)
    .option('--label <KEY=VALUE>', 'only with this label; can be repeated', parseLabel)
    .option('--name <NAME>', 'only trajectories with exactly this name')
    .option(
      '--step-label <KEY=VALUE>',
      'only trajectories that own a step with this label; can be repeated',
      parseStepLabel,
    )
    .option('--min-reward <N>', 'only with at least this reward', parseBound('--min-reward'))
    .option('--max-reward <N>', 'only with at most this reward', parseBound('--max-reward'))
    .option('--all', 'of the whole database')
    .option('--json', 'print the result as JSON');
  return addServerOptions(command)
    .addHelpText('after', EXAMPLES)
    .action((argument: string | undefined, flags: TableFlags) => writeTableFile(cli, argument, flags));
}

async function writeTableFile(cli: CliContext, argument: string | undefined, flags: TableFlags): Promise<void> {
  const { output, rows: kind, own = false } = flags;
  const format = flags.format ?? formatOf(output);
  const columns = flags.columns?.split(',').map((name) => name.trim());
  await withServerOnExisting(cli, flags, async ({ client }) => {
    const selection = await selectionOf(cli, client, argument, flags);
    const path = resolve(cli.cwd, output);
    const rows = await createFile(path, async (part) => {
      using progress = openProgress(cli, flags);
      const target = { path: part, format, table: kind };
      try {
        return await writeRows(client, target, { kind, columns, own, selection, progress });
      } catch (error) {
        if (cli.signal.aborted) throw new CliError('Interrupted. No file was written.', { cause: error });
        throw error;
      }
    });
    const { size: bytes } = await stat(path);
    const text = flags.json
      ? valueJson({ file: output, format, table: kind, rows, bytes })
      : `${output} has ${counted(rows, 'row')} of ${kind}, ${counted(bytes, 'byte')}.`;
    await write(cli.stdout, `${text}\n`);
  });
}

function formatOf(file: string): TableFormat {
  const format = ENDINGS[extname(file).toLowerCase()];
  if (format !== undefined) return format;
  const expected = `expected an ending of ${Object.keys(ENDINGS).join(', ')}, or --format`;
  throw new UsageError(`--output is "${file}": ${expected}.`);
}
