import { readMsgpack } from './msgpack.ts';

/** Begins the media types of what savers of LangGraph store. The format follows. */
const LANGGRAPH = 'application/vnd.langgraph+';

/** Whether the text of a state is JSON. */
export function isJson(mediaType: string): boolean {
  return mediaType.includes('json') || mediaType === `${LANGGRAPH}msgpack`;
}

/** Returns a state as text: of a checkpoint of LangGraph the values of its channels, as JSON. */
export function stateText(mediaType: string, bytes: Uint8Array): string {
  if (mediaType.startsWith(LANGGRAPH) && isJson(mediaType)) {
    try {
      const value = mediaType.endsWith('json') ? JSON.parse(new TextDecoder().decode(bytes)) : readMsgpack(bytes);
      return JSON.stringify(value?.channel_values ?? value);
    } catch {
      // Shown as it is.
    }
  }
  return new TextDecoder().decode(bytes);
}
