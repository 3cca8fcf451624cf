/**
 * The server cannot start. The message is for the person who starts it. Not in `server.ts`, so that a command for a
 * remote server can recognise the error without loading the server.
 */
export class StartError extends Error {
  override readonly name = 'StartError';
}
