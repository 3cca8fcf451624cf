/** The port cannot listen. The message is for the person who chose the address. */
export class ListenError extends Error {
  override readonly name = 'ListenError';
}

export function listenError(error: NodeJS.ErrnoException, host: string, port: number): ListenError {
  const at = host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
  return new ListenError(`Cannot listen on ${at}: ${causeOf(error)}`, { cause: error });
}

function causeOf({ code, message }: NodeJS.ErrnoException): string {
  switch (code) {
    case 'EADDRINUSE':
      return 'the port is in use. Stop the program that uses it, or choose another port with --listen HOST:PORT.';
    case 'EACCES':
      return 'not permitted. Choose a port above 1023 with --listen HOST:PORT.';
    case 'EADDRNOTAVAIL':
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
      return 'this machine does not have that address. Choose another one with --listen HOST:PORT.';
    default:
      return message;
  }
}
