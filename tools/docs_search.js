// The search of a page that is opened as a file: browsers run no worker from there, so that it runs in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inside.importScripts = (...urls) =>
        urls.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve())
      this.load(url).then(() => {
        for (const data of this.waiting.splice(0)) this.tell(data)
        this.waiting = null
      })
    }
    load(url) {
      return new Promise((done, failed) => {
        const script = this.inside.document.createElement("script")
        script.src = new URL(url, location)
        script.onload = done
        script.onerror = failed
        this.inside.document.body.append(script)
      })
    }
    tell(data) {
      this.inside.dispatchEvent(new MessageEvent("message", { data }))
    }
    postMessage(data) {
      this.waiting ? this.waiting.push(data) : this.tell(data)
    }
    set onmessage(listener) {
      this.addEventListener("message", listener)
    }
    terminate() {
      this.inside.frameElement.remove()
    }
  }
}
