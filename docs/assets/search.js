// Of `make site`. The search wants every word of a question on a page. Words that every page has,
// and those that only a question has, are taken out before the question goes to the search.
const STOP_WORDS = new Set(
  ("a an and are as at be becomes by can do does for from has have how i if in is it its may me must my of on or"
    + " should that the there this to was we what when where which who why will with you your").split(" "),
);

const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...others) {
  const input = message?.data?.input;
  if (typeof input === "string") {
    const words = input.split(/\s+/).filter((word) => !STOP_WORDS.has(word.toLowerCase().replace(/[?!.,]/g, "")));
    if (words.length) {
      message = { ...message, data: { ...message.data, input: words.join(" ") } };
    }
  }
  return post.call(this, message, ...others);
};
