import { Code, ConnectError, type Interceptor } from '@connectrpc/connect';

/**
 * Turns HTTP 421 into a permanent error that says what to do. The server sends 421 when it does not answer to the name
 * in the address.
 */
export const explainMisdirected: Interceptor = (next) => async (request) => {
  try {
    return await next(request);
  } catch (error) {
    if (!(error instanceof ConnectError) || error.rawMessage !== 'HTTP 421') throw error;
    const { hostname } = new URL(request.url);
    throw new ConnectError(
      `The server does not answer to the name ${hostname} (HTTP 421): use the address that it listens on, or start it with --allowed-host ${hostname}.`,
      Code.FailedPrecondition,
      undefined,
      undefined,
      error,
    );
  }
};
