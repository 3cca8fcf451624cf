import { Command } from 'commander';
import { counted, valueJson } from './columns.ts';
import { confirmed } from './confirmation.ts';
import { type CliContext, CliError } from './context.ts';
import { addServerOptions, FIRST_ANSWER, type ServerFlags, withServerOnExisting, write } from './server_access.ts';

interface DeleteFlags extends ServerFlags {
  readonly cancelLive?: true;
  readonly yes?: true;
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch namespaces list
  anabranch namespaces delete team-a

A namespace exists while it has data. Keys of a deleted one stay: revoke them first, so that nothing new appears.`;

/** Creates the commands for the namespaces of an installation. */
export function namespacesCommand(cli: CliContext): Command {
  const namespaces = new Command('namespaces').description('List the namespaces that have data, and delete one.');
  for (const command of [listCommand(cli), deleteCommand(cli)]) namespaces.addCommand(command);
  return namespaces.addHelpText('after', EXAMPLES);
}

function listCommand(cli: CliContext): Command {
  const command = new Command('list')
    .description('List the namespaces that have data, in order of their names.')
    .option('--json', 'print names as JSON, one on a line');
  return addServerOptions(command).action((flags: ServerFlags & { readonly json?: true }) =>
    withServerOnExisting(cli, flags, async ({ client }) => {
      const { namespaces } = await client.admin.listNamespaces({}, FIRST_ANSWER);
      for (const name of namespaces) await write(cli.stdout, `${flags.json ? valueJson(name) : name}\n`);
      if (namespaces.length === 0 && !flags.json) await write(cli.stdout, 'No namespace has data.\n');
    }),
  );
}

function deleteCommand(cli: CliContext): Command {
  const command = new Command('delete')
    .description('Delete everything in a namespace. Asks first. There is no way back but an archive or a backup.')
    .argument('<NAME>', 'name of the namespace')
    .option('--cancel-live', 'delete live rollouts, too; later calls of their workers fail')
    .option('--yes', 'do not ask')
    .option('--json', 'print the counts as JSON');
  return addServerOptions(command)
    .addHelpText('after', EXAMPLES)
    .action((name: string, flags: DeleteFlags) =>
      withServerOnExisting(cli, flags, async ({ client }) => {
        if (!flags.yes && !(await confirmed(cli, `everything in the namespace ${name}`))) {
          throw new CliError('Nothing was deleted.');
        }
        let [runs, trajectories] = [0n, 0n];
        const request = { name, cancelLive: flags.cancelLive === true };
        for await (const so of client.admin.deleteNamespace(request, { signal: cli.signal })) {
          [runs, trajectories] = [so.deletedRuns, so.deletedTrajectories];
        }
        const text = flags.json
          ? valueJson({ deletedRuns: `${runs}`, deletedTrajectories: `${trajectories}` })
          : `Deleted the namespace ${name}: ${counted(runs, 'run')}, ${counted(trajectories, 'trajectory')}.`;
        await write(cli.stdout, `${text}\n`);
      }),
    );
}
