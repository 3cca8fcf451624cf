import { Code, ConnectError, type Interceptor } from '@connectrpc/connect';

/** Reports HTTP 421, a server that does not answer to the name in the address, as an error that is final and says what to do. */
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
