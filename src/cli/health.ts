import { request as plainRequest } from 'node:http';
import { request as tlsRequest } from 'node:https';
import { Command } from 'commander';
import { addressOfServer } from '../config/listening.ts';
import { Values } from '../config/values.ts';
import { addConfigOptions } from './config_options.ts';
import { type CliContext, CliError } from './context.ts';
import { write } from './server_access.ts';

const PATIENCE_MS = 3_000;

const DESCRIPTION =
  'Ask the server that has the same settings whether it serves, for health checks of containers. Prints "ok", or ends with code 1.';

/** Creates the command that checks the health of the server on this machine. */
export function healthCommand(cli: CliContext): Command {
  const command = new Command('health').description(DESCRIPTION);
  return addConfigOptions(command, ['--listen']).action(async (flags: Readonly<Record<string, unknown>>) => {
    const address = addressOfServer(new Values({ env: cli.env, flags, cwd: cli.cwd }), cli.cwd);
    const status = await statusOf(address).catch((error: Error) => {
      throw new CliError(`The server does not answer at ${address.url} (${error.message}).`);
    });
    if (status !== 200) throw new CliError(`The server at ${address.url} does not serve (status ${status}).`);
    await write(cli.stdout, 'ok\n');
  });
}

function statusOf({ url, socket }: ReturnType<typeof addressOfServer>): Promise<number | undefined> {
  const { promise, resolve, reject } = Promise.withResolvers<number | undefined>();
  const at = new URL('/healthz', socket === undefined ? url : 'http://localhost');
  const isTls = at.protocol === 'https:';
  // The server is on this machine, under a name of its certificate or not, and is told no secret.
  const options = { socketPath: socket, agent: false, timeout: PATIENCE_MS, rejectUnauthorized: false };
  const request = (isTls ? tlsRequest : plainRequest)(at, options, (response) => {
    response.resume();
    resolve(response.statusCode);
  });
  request.on('timeout', () => request.destroy(new Error(`no answer within ${PATIENCE_MS / 1000} s`)));
  request.on('error', reject);
  request.end();
  return promise;
}
