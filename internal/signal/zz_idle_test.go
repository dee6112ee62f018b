package signal
import ("testing";"syscall";"time";"context";"os";"github.com/kured-agent/kured-agent/internal/bus/bustest")
func TestZZIdle(t *testing.T){
 if os.Getenv("IDLE")=="" {return}
 d:=bustest.Start(t); bustest.NewUpdateEngine(d); b:=startBus(t,d); root:=t.TempDir(); write(t,root+sentinel,"")
 srcs,_:=Build(append(Defaults(root),Spec{"update-engine",nil},Spec{"dbus-signal",needRebootSignal}),Env{Bus:b,Root:root,Runtime:t.TempDir()})
 s:=NewSet(srcs,nil,settle,nil); go s.Run(context.Background()); s.WaitFirst(t.Context())
 time.Sleep(2*time.Second)
 var a,z syscall.Rusage; syscall.Getrusage(0,&a); time.Sleep(61*time.Second); syscall.Getrusage(0,&z)
 t.Logf("cpu user %dus sys %dus", z.Utime.Nano()/1000-a.Utime.Nano()/1000, z.Stime.Nano()/1000-a.Stime.Nano()/1000)
}
