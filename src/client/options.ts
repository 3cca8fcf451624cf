import type { Interceptor } from '@connectrpc/connect';
import type { AccessOptions } from './access.ts';

/** Options of connectClient(). */
export interface ConnectOptions extends AccessOptions {
  /**
   * Address of the server: `host:port`, `https://host:port`, `http://host:port` or `unix:PATH`. Default:
   * ANABRANCH_ADDRESS, else 127.0.0.1:50051.
   */
  readonly address?: string | undefined;
  /** Certificates of the authorities to trust, as PEM. Default: ANABRANCH_CA_FILE, else those of Node. */
  readonly ca?: string | Buffer | undefined;
  /**
   * Certificate and key of the client, as PEM, for servers that accept it in place of a token. Default:
   * ANABRANCH_CERT_FILE and ANABRANCH_KEY_FILE.
   */
  readonly cert?: string | Buffer | undefined;
  readonly key?: string | Buffer | undefined;
  /** Connect interceptors, for example for tracing. The first one is the outermost. */
  readonly interceptors?: readonly Interceptor[];
}
