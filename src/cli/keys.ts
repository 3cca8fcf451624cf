import { type Timestamp, timestampDate } from '@bufbuild/protobuf/wkt';
import { Command, Option } from 'commander';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { type ApiKey, ApiKeySchema, CreateKeyResponseSchema } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { fill, messageJson, type Paint, paintFor, printable } from './columns.ts';
import type { CliContext } from './context.ts';
import { age } from './retention_policy.ts';
import {
  addServerOptions,
  FIRST_ANSWER,
  readAll,
  type ServerFlags,
  withServer,
  withServerOnExisting,
  write,
} from './server_access.ts';

const ROLES = { read: Role.READ, work: Role.WORK, write: Role.WRITE, admin: Role.ADMIN } as const;

interface CreateFlags extends ServerFlags {
  readonly role: keyof typeof ROLES;
  readonly namespace?: readonly string[];
  readonly expires?: bigint;
  readonly json?: true;
}

interface ListFlags extends ServerFlags {
  readonly json?: true;
}

const EXAMPLES = `
Examples:
  anabranch keys create trainer --role write
  anabranch keys create worker --role work --namespace team-a --expires 90d
  anabranch keys list
  anabranch keys revoke ID

  read   gets, lists, reads, follows, watches and exports
  work   and appends, branches, claims rollouts, logs metrics: for agents and workers
  write  and everything else in a namespace: for training loops
  admin  and keys, namespaces, backup and other work on the whole database

A key is shown once. Only its digest is stored.`;

/** Creates the commands for the API keys of an installation. */
export function keysCommand(cli: CliContext): Command {
  const keys = new Command('keys').description('Create, list and revoke the API keys that callers authenticate with.');
  for (const command of [createCommand(cli), listCommand(cli), revokeCommand(cli)]) keys.addCommand(command);
  return keys.addHelpText('after', EXAMPLES);
}

function createCommand(cli: CliContext): Command {
  const command = new Command('create')
    .description('Create an API key, and print it. It cannot be shown again.')
    .argument('<NAME>', 'name of the principal; several keys can have one name')
    .addOption(new Option('--role <ROLE>', 'what the key may do').choices(Object.keys(ROLES)).makeOptionMandatory())
    .option('--namespace <NAME...>', 'namespaces that the key is for (default: all for admin, else "default")')
    .option('--expires <AGE>', 'how long the key is valid: 12h, 90d (default: without end)', age)
    .option('--json', 'print the response as JSON');
  return addServerOptions(command)
    .addHelpText('after', EXAMPLES)
    .action((name: string, { role, namespace = [], expires, json, ...server }: CreateFlags) =>
      withServer(cli, server, async ({ client }) => {
        const validFor = expires === undefined ? {} : { validFor: { seconds: expires } };
        const given = { name, role: ROLES[role], namespaces: [...namespace], ...validFor };
        const made = await client.admin.createKey(given, FIRST_ANSWER);
        if (json) return write(cli.stdout, `${messageJson(CreateKeyResponseSchema, made)}\n`);
        const { dim } = paintFor(cli.stderr, cli.env);
        await write(cli.stderr, dim(`${keyLine(made.key!)}\nKeep this key; it cannot be shown again:\n`));
        await write(cli.stdout, `${made.secret}\n`);
      }),
    );
}

function listCommand(cli: CliContext): Command {
  const command = new Command('list')
    .description('List the API keys, the oldest first.')
    .option('--json', 'print keys as JSON, one on a line');
  return addServerOptions(command).action((flags: ListFlags) =>
    withServerOnExisting(cli, flags, async ({ client }) => {
      const keys = await readAll(
        (pageToken) => client.admin.listKeys({ pageToken, pageSize: 1000 }, FIRST_ANSWER),
        (page) => page.keys,
      );
      const paint = paintFor(cli.stdout, cli.env);
      for (const key of keys) {
        await write(cli.stdout, flags.json ? `${messageJson(ApiKeySchema, key)}\n` : `${shownKey(key, paint)}\n`);
      }
      if (keys.length === 0 && !flags.json) await write(cli.stdout, 'There is no API key.\n');
    }),
  );
}

function revokeCommand(cli: CliContext): Command {
  const command = new Command('revoke')
    .description('Revoke an API key. Servers refuse it within 5 seconds, and end its streams.')
    .argument('<ID>', 'id of the key, as `keys list` shows it');
  return addServerOptions(command).action((keyId: string, flags: ServerFlags) =>
    withServerOnExisting(cli, flags, async ({ client }) => {
      const { key } = await client.admin.revokeKey({ keyId }, FIRST_ANSWER);
      await write(cli.stdout, `Revoked ${keyLine(key!)}\n`);
    }),
  );
}

const NAME_COLUMNS = 20;

function shownKey(key: ApiKey, { dim }: Paint): string {
  return isOver(key) ? dim(keyLine(key)) : keyLine(key);
}

function keyLine({ id, name, role, namespaces, expireTime, revokeTime }: ApiKey): string {
  const end =
    revokeTime !== undefined
      ? `revoked ${dayOf(revokeTime)}`
      : expireTime === undefined
        ? ''
        : `until ${dayOf(expireTime)}`;
  const words = [
    id,
    fill(printable(name), NAME_COLUMNS),
    Role[role].toLowerCase().padEnd(5),
    namespaces.join(','),
    end,
  ];
  return words.join('  ').trimEnd();
}

function isOver({ expireTime, revokeTime }: ApiKey): boolean {
  return revokeTime !== undefined || (expireTime !== undefined && timestampDate(expireTime).getTime() <= Date.now());
}

function dayOf(time: Timestamp): string {
  return timestampDate(time).toISOString().slice(0, 10);
}
